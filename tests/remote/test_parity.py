"""A deterministic environment driven on the device and by the engine in lock step is one and the same run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_process_actor import InProcessActor

from zerocopy_envs import registry
from zerocopy_envs.host_steps import make_timestep
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.config import NetworkConfig, R2D2Config, VTraceConfig
from zerocopy_seed.keys import Stream, stream_key
from zerocopy_seed.loops.mixed import make_mixed_update
from zerocopy_seed.loops.on_device import init_train_state, make_update
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.requests import make_request

NUM_ENVS, LENGTH, SEED, NUM_UPDATES = 6, 5, 3, 20
NETWORKS = {
    "none": NetworkConfig(hidden_sizes=(8,), use_last_action=True, use_last_reward=True, init="lecun"),
    "gru": NetworkConfig(hidden_sizes=(8,), core="gru", core_size=8, frame_stack=2, init="lecun"),
}
AGENTS = {
    "vtrace": VTraceConfig(unroll_length=LENGTH, learning_rate=1e-2),
    "r2d2": R2D2Config(
        unroll_length=LENGTH,
        sequence_length=LENGTH,
        period=LENGTH,
        batch_size=4,
        replay_capacity=60,
        min_replay=12,
        n_step=2,
        target_update_period=3,
        learning_rate=1e-2,
    ),
}


@pytest.mark.parametrize(
    ("name", "core", "num_on_device"),
    [
        ("vtrace", "none", 0),
        ("r2d2", "none", 0),
        pytest.param("vtrace", "none", 2, marks=pytest.mark.slow),
        pytest.param("r2d2", "none", 2, marks=pytest.mark.slow),
        pytest.param("vtrace", "gru", 0, marks=pytest.mark.slow),
        pytest.param("r2d2", "gru", 0, marks=pytest.mark.slow),
        pytest.param("r2d2", "gru", 3, marks=pytest.mark.slow),
    ],
)
def test_the_bridge_in_lock_step_equals_the_device(name, core, num_on_device):
    environment = Vectorized(registry.make("zerocopy:Catch"))
    agent = make_agent(AGENTS[name], NETWORKS[core], environment.spec, num_slots=NUM_ENVS)

    state = init_train_state(agent, environment, SEED, NUM_ENVS)
    update = jax.jit(make_update(agent, environment, LENGTH))
    for _ in range(NUM_UPDATES):
        state, _, _ = update(state)

    mixed, engine, timestep = run_lock_step(agent, environment, NUM_UPDATES, num_on_device)

    def arrays(state):
        return jax.tree.map(np.asarray, (state.learner.params, state.learner.env_steps))

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), arrays(state), arrays(mixed))
    words = jax.random.key_data(state.actor.agent.exploration.key)
    np.testing.assert_array_equal(engine._tables.agent.exploration.key, words[num_on_device:])
    later = jax.tree.map(lambda x: x[num_on_device:], state.actor.timestep)
    jax.tree.map(np.testing.assert_array_equal, timestep, later)
    if num_on_device:
        sooner = jax.tree.map(lambda x: x[:num_on_device], state.actor.timestep)
        jax.tree.map(np.testing.assert_array_equal, mixed.actor.timestep, sooner)


def run_lock_step(agent, environment, num_updates, num_on_device):
    """The state after so many updates, the engine, and the last timestep; all in one actor but for some."""
    state = init_train_state(agent, environment, SEED, num_on_device or 1)
    engine = make_engine(
        agent, environment.spec, state.learner, max_policy_lag=0, num_on_device=num_on_device
    )
    engine.warm_up()
    slots, seeds = engine.open_slots(engine.num_slots) or pytest.fail("no slots")
    words = np.stack([seeds >> np.uint64(32), seeds & np.uint64(0xFFFFFFFF)], -1).astype(np.uint32)
    env_state, timestep = jax.jit(environment.reset)(
        jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    )
    step, learn = jax.jit(environment.step), jax.jit(agent.learn)
    update = jax.jit(make_mixed_update(agent, environment, LENGTH))
    add(engine, slots, timestep)
    for _ in range(num_updates):
        for _ in range(LENGTH):
            ((_, actions),) = engine.step()
            env_state, timestep = step(env_state, jnp.array(actions))
            add(engine, slots, timestep)
        assert engine.step() == []  # the timestep that closes the unrolls waits for the update
        taken = engine.take(0.0)
        assert taken is not None and taken.is_due
        if num_on_device:
            state, metrics, _ = update(state, taken.trajectory)
            assert 0 < metrics["device_share"] < 1
        else:
            state = state._replace(learner=learn(state.learner, taken.trajectory)[0])
        engine.publish(agent.acting(state.learner), taken.slot)
    return state, engine, timestep


def make_engine(agent, spec, learner, *, max_policy_lag, num_on_device=0):
    return Engine(
        agent,
        spec,
        agent.acting(learner),
        seed=SEED,
        num_slots=NUM_ENVS - num_on_device,
        first_slot=num_on_device,
        unroll_length=LENGTH,
        max_policy_lag=max_policy_lag,
        max_batch=256,
    )


def add(engine, slots, timestep):
    timestep = jax.tree.map(np.asarray, timestep)
    leaves = tuple(jax.tree.leaves(timestep.observation))
    request = make_request(
        slots, timestep.step_type, timestep.reward, timestep.discount, leaves, lambda actions: None
    )
    assert engine.check(request) is None
    engine.add(request)


class Paying:
    """Episodes of three steps, which pay 7, 0 and -20."""

    def __init__(self, spec, num_envs):
        self.spec, self.num_envs = spec, num_envs

    def reset(self, seeds):
        self._age = np.zeros(self.num_envs, np.int64)
        return self._timestep()

    def send(self, actions):
        self._age = (self._age + 1) % 4

    def recv(self):
        return np.arange(self.num_envs), self._timestep()

    def close(self):
        pass

    def _timestep(self):
        age = self._age
        observation = np.zeros((self.num_envs, *self.spec.observation.shape), np.float32)
        return make_timestep(age == 0, np.array([0, 7, 0, -20])[age], age == 3, age == 3, observation)


def test_rewards_are_logged_as_paid_and_learned_from_clipped():
    spec = registry.make("zerocopy:Catch").spec
    agent = make_agent(
        dataclasses.replace(AGENTS["vtrace"], reward_clip=1.0), NETWORKS["none"], spec, num_slots=NUM_ENVS
    )
    learner = jax.jit(agent.init)(stream_key(SEED, Stream.LEARNER))
    # of zeros, so that rewards matter as what is learned from, and not as what the network reads
    learner = learner._replace(params=jax.tree.map(np.zeros_like, learner.params))
    engine = make_engine(agent, spec, learner, max_policy_lag=np.inf)
    (paid,) = InProcessActor(engine, Paying(spec, NUM_ENVS)).play(1)
    figures = engine.figures()
    assert (figures["num_episodes"], figures["episode_return"]) == (NUM_ENVS, -13)
    np.testing.assert_array_equal(paid.timestep.reward[:, 0], [0, 7, 0, -20, 0, 7])

    learn = jax.jit(agent.learn)
    reward = np.array([[0, 1, 0, -1, 0, 1]] * NUM_ENVS, np.float32).T
    clipped = paid._replace(timestep=paid.timestep._replace(reward=reward))
    unlimited = learner._replace(settings=learner.settings | {"reward_clip": jnp.float32(np.inf)})
    from_paid, from_clipped, from_unlimited = (
        [float(learn(state, trajectory)[1][name]) for name in ("value_loss", "policy_loss")]
        for state, trajectory in ((learner, paid), (unlimited, clipped), (unlimited, paid))
    )
    assert from_paid == from_clipped
    assert all(np.array(from_paid) != from_unlimited)
