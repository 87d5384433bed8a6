"""A deterministic environment driven on the device and by the engine in lock step is one and the same run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs import registry
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.config import NetworkConfig, R2D2Config, VTraceConfig
from zerocopy_seed.keys import Stream, stream_key
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
    ("name", "core"),
    [
        ("vtrace", "none"),
        ("r2d2", "none"),
        pytest.param("vtrace", "gru", marks=pytest.mark.slow),
        pytest.param("r2d2", "gru", marks=pytest.mark.slow),
    ],
)
def test_the_bridge_in_lock_step_equals_the_device(name, core):
    environment = Vectorized(registry.make("zerocopy:Catch"))
    agent = make_agent(AGENTS[name], NETWORKS[core], environment.spec, num_slots=NUM_ENVS)

    state = init_train_state(agent, environment, SEED, NUM_ENVS)
    update = jax.jit(make_update(agent, environment, LENGTH))
    for _ in range(NUM_UPDATES):
        state, _, _ = update(state)

    learner, engine, timestep = run_lock_step(agent, environment, NUM_UPDATES)

    expected = jax.tree.map(np.asarray, (state.learner.params, state.learner.env_steps))
    found = jax.tree.map(np.asarray, (learner.params, learner.env_steps))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), expected, found)
    words = jax.random.key_data(state.actor.agent.exploration.key)
    np.testing.assert_array_equal(engine._tables.agent.exploration.key, words)
    jax.tree.map(np.testing.assert_array_equal, timestep, state.actor.timestep)


def run_lock_step(agent, environment, num_updates):
    """The learner after so many updates, the engine, and the last timestep; all environments in one actor."""
    learner = jax.jit(agent.init)(stream_key(SEED, Stream.LEARNER))
    engine = Engine(
        agent,
        environment.spec,
        agent.acting(learner),
        seed=SEED,
        num_slots=NUM_ENVS,
        unroll_length=LENGTH,
        max_policy_lag=0,
        max_batch=256,
    )
    engine.warm_up()
    slots, seeds = engine.open_slots(NUM_ENVS) or pytest.fail("no slots")
    words = np.stack([seeds >> np.uint64(32), seeds & np.uint64(0xFFFFFFFF)], -1).astype(np.uint32)
    env_state, timestep = jax.jit(environment.reset)(
        jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    )
    step, learn = jax.jit(environment.step), jax.jit(agent.learn)
    add(engine, slots, timestep)
    for _ in range(num_updates):
        for _ in range(LENGTH):
            ((_, actions),) = engine.step()
            env_state, timestep = step(env_state, jnp.array(actions))
            add(engine, slots, timestep)
        assert engine.step() == []  # the timestep that closes the unrolls waits for the update
        taken = engine.take(0.0)
        assert taken is not None and taken.is_due
        learner, _ = learn(learner, taken.trajectory)
        engine.publish(agent.acting(learner), taken.slot)
    return learner, engine, timestep


def add(engine, slots, timestep):
    timestep = jax.tree.map(np.asarray, timestep)
    leaves = tuple(jax.tree.leaves(timestep.observation))
    request = make_request(
        slots, timestep.step_type, timestep.reward, timestep.discount, leaves, lambda actions: None
    )
    assert engine.check(request) is None
    engine.add(request)
