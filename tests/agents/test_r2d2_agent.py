"""R2D2 with an LSTM on episodes that end inside its sequences; most tests share one set of programs."""

import dataclasses
import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import (
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
    StepType,
    TimeStep,
)
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed import replay as replays
from zerocopy_seed.agents import make_agent
from zerocopy_seed.agents import r2d2 as r2d2_module
from zerocopy_seed.agents.r2d2 import q_values
from zerocopy_seed.config import EnvConfig, NetworkConfig, R2D2Config
from zerocopy_seed.keys import Stream, slot_keys, stream_key
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.layout import DATA_AXIS, STATE_SPECS, lay_out, shard_dispatch
from zerocopy_seed.loops.on_device import (
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
)
from zerocopy_seed.networks import NetworkOutput, make_network
from zerocopy_seed.ops.distributions import ILLEGAL_LOGIT
from zerocopy_seed.ops.exploration import deal_rungs, epsilon_ladder
from zerocopy_seed.ops.q_learning import n_step_double_q
from zerocopy_seed.recurrent import init_network, network_input_unroll
from zerocopy_seed.replay import sum_tree
from zerocopy_seed.replay_layout import make_layout
from zerocopy_seed.rollout import unroll
from zerocopy_seed.types import ActingParams, Mode, valid_transitions

LSTM = NetworkConfig(
    hidden_sizes=(8,),
    core="lstm",
    core_size=4,
    frame_stack=2,
    use_last_action=True,
    use_last_reward=True,
    init="lecun",
)
CONFIG = R2D2Config(
    unroll_length=10,
    num_shards=8,
    burn_in=20,
    sequence_length=10,
    period=10,
    replay_capacity=128,
    min_replay=40,
    batch_size=16,
    updates_per_insert=3,
    n_step=3,
    discount=0.9,
    target_update_period=4,
    learning_rate=1e-3,
)
SLOTS, STARTS, WINDOW = 16, 8, 30
REWARD_CLIP = 0.9
FIRST_UPDATE = 6
"""The insert by which 40 windows are whole: 16 in each of the fourth, fifth and sixth."""


class Stretches:
    """Episodes of 13, 18, 20 or 5 steps, terminated or truncated: what is seen and earned says little."""

    spec = EnvironmentSpec(ArraySpec((2,), np.dtype(np.float32), -1.0, 1.0), DiscreteAction(3), 20)

    def reset(self, key):
        length, cut, phase = jax.random.split(key, 3)
        secret = (
            jax.random.choice(length, jnp.array([13, 18, 20, 5], jnp.int32)),
            jax.random.bernoulli(cut),
            jax.random.uniform(phase),
        )
        state = (jnp.int32(0), *secret)
        return state, self._timestep(state, jnp.int8(StepType.FIRST), jnp.float32(0), jnp.float32(1))

    def step(self, state, action):
        time, length, cut, phase = state
        state = (time + 1, length, cut, phase)
        reward = jnp.cos(3.0 * phase + time.astype(jnp.float32)) + 0.3 * action.astype(jnp.float32)
        ended = time + 1 >= length
        step_type = jnp.where(ended, jnp.int8(StepType.LAST), jnp.int8(StepType.MID))
        discount = jnp.where(ended & ~cut, jnp.float32(0), jnp.float32(1))
        return state, self._timestep(state, step_type, reward, discount)

    def _timestep(self, state, step_type, reward, discount):
        angle = 7.0 * state[-1] + state[0].astype(jnp.float32)
        return TimeStep(step_type, reward, discount, jnp.stack([jnp.sin(angle), jnp.cos(1.7 * angle)]))


class Programs(NamedTuple):
    """What is compiled once, and the state of a run that has not begun."""

    config: R2D2Config
    agent: Any
    environment: Any
    network: Any
    state: Any
    unroll: Any
    learn: Any
    look: Any


def make(config=CONFIG, network=LSTM, environment=None, num_slots=SLOTS):
    environment = environment or Vectorized(Stretches())
    agent = make_agent(config, network, environment.spec, num_slots=num_slots)
    module = make_network(network, environment.spec)
    slots = jnp.arange(num_slots, dtype=jnp.int32)
    layout = make_layout(config, num_slots=num_slots, frame_stack=network.frame_stack)

    def one_unroll(params, actor):
        return unroll(
            agent.act, environment.step, params, actor, slots, length=config.unroll_length, mode=Mode.TRAIN
        )

    def look(params, replay, uniforms):
        """Windows drawn, and the network's Q and core along them, from the stored core and from zeros."""
        draw, windows = replays.sample(layout, replay, uniforms, num_shards=config.num_shards)
        inputs = network_input_unroll(windows.recurrent, windows.timestep, windows.action)
        core = windows.recurrent.core
        stored, zero = (
            q_values(module.apply(params, inputs, core)[0], dueling=config.dueling)
            for core in (core, jax.tree.map(jnp.zeros_like, core))
        )
        return draw, windows, stored, zero

    state = jax.jit(lambda: init_train_state(agent, environment, 0, num_slots))()
    return Programs(
        config, agent, environment, module, state, jax.jit(one_unroll), jax.jit(agent.learn), jax.jit(look)
    )


def run(programs, num_updates, **settings):
    """Unrolls and learns. Every LearnerState, from the first, and all trajectories and metrics."""
    learner, actor = programs.state.learner, programs.state.actor
    learner = with_settings(learner, **settings)
    learners, trajectories, metrics = [learner], [], []
    for _ in range(num_updates):
        actor, trajectory = programs.unroll(programs.agent.acting(learner), actor)
        learner, figures = programs.learn(learner, trajectory)
        learners.append(learner)
        trajectories.append(trajectory)
        metrics.append(figures)
    return learners, trajectories, metrics


def with_settings(learner, **settings):
    changed = {name: jnp.float32(value) for name, value in settings.items()}
    assert changed.keys() <= learner.settings.keys()
    return learner._replace(settings={**learner.settings, **changed})


@pytest.fixture(scope="module")
def programs():
    return make()


@pytest.fixture(scope="module")
def frozen(programs):
    return run(programs, 13, learning_rate=0.0, reward_clip=REWARD_CLIP)


@pytest.fixture(scope="module")
def learning(programs):
    return run(programs, FIRST_UPDATE + 4)


def assert_trees_equal(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def trees_differ(a, b):
    return any((x != y).any() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def adam(learner):
    """Adam's own state."""
    return learner.opt_state[1]


def masses_of(replay):
    """[slots, starts]."""
    leaves = np.asarray(replay.masses[-1]).reshape(CONFIG.num_shards, -1)
    return leaves[:, : SLOTS // CONFIG.num_shards * STARTS].reshape(SLOTS, STARTS)


def rescale(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def rescale_inverse(y):
    return np.sign(y) * (((np.sqrt(1 + 4e-3 * (np.abs(y) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1)


def expected_masses(trajectories):
    """Masses [slots, starts] by the acting Q-values, from the definitions, row by row in float64."""
    rows = jax.tree.map(
        lambda *x: np.concatenate(x), *[jax.tree.map(lambda x: np.asarray(x)[:10], t) for t in
        [(t.timestep._replace(observation=()), t.actor_output) for t in trajectories]]
    )  # fmt: skip
    (step_type, reward, discount, _), said = rows
    num_rows = len(reward)
    masses = np.zeros((SLOTS, STARTS))
    for slot in range(SLOTS):
        for start in range(0, num_rows - WINDOW, 10):
            # The row before a window is its context.
            if start - 1 < num_rows - STARTS * 10 and start > 0 or num_rows > STARTS * 10 and start == 0:
                continue
            errors = []
            for row in range(start + 20, start + WINDOW):
                if step_type[row + 1, slot] == StepType.FIRST:
                    continue
                total, weight, now = 0.0, 1.0, row
                for _ in range(CONFIG.n_step):
                    now += 1
                    total += weight * np.clip(reward[now, slot], -REWARD_CLIP, REWARD_CLIP)
                    weight *= 0.9 * discount[now, slot]
                    if step_type[now, slot] == StepType.LAST or now == start + WINDOW:
                        break
                total += weight * rescale_inverse(float(said.q_max[now, slot]))
                errors.append(abs(rescale(total) - said.q_value[row, slot]))
            priority = 0.9 * max(errors) + 0.1 * np.mean(errors)
            masses[slot, start // 10 % STARTS] = priority**0.9
    return masses


def test_a_window_from_its_stored_state_gives_what_the_actor_said(programs, frozen):
    learner = frozen[0][-1]
    uniforms = jax.random.uniform(jax.random.key(1), (8, 8, replays.num_uniforms(learner.replay)))
    draw, windows, stored, zero = programs.look(learner.params, learner.replay, uniforms)
    assert (draw.probability > 0).all()
    assert len(set(draw.index.tolist())) > 30
    step_type = np.asarray(windows.timestep.step_type)
    # Windows begin in the middle of episodes, burn-ins cross several, both kinds of end are there.
    assert (step_type[0] != StepType.FIRST).sum() > 30
    assert ((step_type[1:20] == StepType.FIRST).sum(0) > 1).any()
    ends = np.asarray(windows.timestep.discount)[step_type == StepType.LAST]
    assert set(ends) == {0.0, 1.0}

    said = windows.actor_output
    q = np.take_along_axis(np.asarray(stored[:-1]), np.asarray(windows.action)[..., None], -1)[..., 0]
    np.testing.assert_allclose(q, said.q_value[:-1], atol=1e-5)
    np.testing.assert_allclose(stored.max(-1), said.q_max, atol=1e-5)
    # Zeros instead of the stored state would not.
    assert (np.abs(zero.max(-1) - said.q_max).max(0) > 1e-3).sum() > 30


def test_masses_are_the_priorities_of_the_acting_q_values(frozen):
    learners, trajectories, _ = frozen
    before = FIRST_UPDATE - 1
    expected = expected_masses(trajectories[:before])
    assert (expected > 0).sum() == 2 * SLOTS
    np.testing.assert_allclose(masses_of(learners[before].replay), expected, rtol=2e-5, atol=1e-6)
    # Weights that stay say the same again, from stored states and burn-in: learning changes no priority.
    expected = expected_masses(trajectories)
    assert (expected > 0).sum() == (STARTS - 4) * SLOTS
    np.testing.assert_allclose(masses_of(learners[-1].replay), expected, rtol=2e-4, atol=1e-5)


def test_nothing_is_learned_before_the_replay_holds_enough(learning):
    learners, _, _ = learning
    first = learners[0]
    for learner in learners[1:FIRST_UPDATE]:
        assert_trees_equal(
            (first.params, first.opt_state, first.target), (learner.params, learner.opt_state, learner.target)
        )
    assert trees_differ(first.params, learners[FIRST_UPDATE].params)
    assert_trees_equal(first.target.params, learners[FIRST_UPDATE].target.params)


def test_the_replay_ratio_is_exact(programs, learning, monkeypatch):
    learners, trajectories, _ = learning
    draws = []
    sample = replays.sample

    def counted(*args, **kwargs):
        draw, windows = sample(*args, **kwargs)
        draws.append(draw.index.size)
        return draw, windows

    monkeypatch.setattr(r2d2_module.replays, "sample", counted)
    jax.eval_shape(lambda *x: programs.agent.learn(*x), learners[0], trajectories[0])
    assert draws == [CONFIG.batch_size]
    for inserts, learner in enumerate(learners):
        # 30 transitions need the row after them.
        assert int(learner.replay.completed.sum()) == SLOTS * max(0, inserts - 3)
        updates = max(0, inserts - FIRST_UPDATE + 1) * CONFIG.updates_per_insert
        assert int(adam(learner).count) == updates
        assert int(learner.num_updates.low) == inserts


def test_the_target_network_is_copied_every_n_updates(learning):
    # Three updates an insert and a copy every four: after 3, 6, 9, 12, 15 updates the last copy was at
    # 0, 4, 8, 12, 12.
    learners, _, _ = learning
    after = [learner.target for learner in learners[FIRST_UPDATE - 1 :]]
    assert [int(target.age) for target in after] == [0, 3, 2, 1, 0, 3]
    changed = [trees_differ(a.params, b.params) for a, b in zip(after[:-1], after[1:], strict=True)]
    assert changed == [False, True, True, True, False]
    # But for the last bit, which XLA may round differently for either of two outputs.
    copied = learners[FIRST_UPDATE + 3]
    np.testing.assert_allclose(flat(copied.target.params), flat(copied.params), rtol=1e-6, atol=1e-8)
    assert np.abs(flat(copied.target.params) - flat(learners[FIRST_UPDATE + 2].params)).max() > 1e-4


def test_nothing_recompiles(programs, frozen, learning):
    assert programs.unroll._cache_size() == programs.learn._cache_size() == 1
    for before, after in zip(*map(jax.tree.leaves, (programs.state.learner, learning[0][-1])), strict=True):
        assert before.aval == after.aval


def only(learner, places):
    """The learner whose replay has the masses {(slot, start): mass} and no others."""
    masses = learner.replay.masses
    per_shard = SLOTS // CONFIG.num_shards
    index = [
        slot // per_shard * sum_tree.leaves_per_shard(masses) + slot % per_shard * STARTS + start
        for slot, start in places
    ]
    empty = jax.tree.map(jnp.zeros_like, masses)
    mass = jnp.array(list(places.values()), jnp.float32)
    masses = sum_tree.set_masses(empty, jnp.array(index, jnp.int32), mass)
    return learner._replace(replay=learner.replay._replace(masses=masses))


def flat(tree):
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def last_gradient(programs, learner, trajectory):
    """The gradient of the last update of a `learn` that inserts nothing and moves nothing, and its state."""
    # Adam's first moment without decay is the gradient.
    learner = with_settings(learner, learning_rate=0.0, adam_b1=0.0, importance_exponent=1.0)
    learner = learner._replace(target=learner.target._replace(age=jnp.int32(0)))
    after, _ = programs.learn(learner, trajectory._replace(slot=trajectory.slot + SLOTS))
    return flat(adam(after).mu), after


def gradient_of_a_window(programs, learner, trajectory, place):
    """Of the loss of the window at `place` with weight 1."""
    # Alone, it has both of its shard's draws; shards that have nothing to draw add nothing.
    grads, _ = last_gradient(programs, only(learner, {place: 0.5}), trajectory)
    return grads * CONFIG.batch_size / 2


def test_gradients_scale_with_the_importance_weights(programs, learning):
    learners, trajectories, _ = learning
    learner, trajectory = learners[-1], trajectories[-1]
    # Two windows of one shard and one of another, which draw two each.
    places = [(0, 4), (1, 5), (2, 4)]
    single = [gradient_of_a_window(programs, learner, trajectory, place) for place in places]
    assert all(np.abs(grads).max() > 1e-3 for grads in single)

    learner = only(learner, dict.fromkeys(places, 0.5))
    seen = set()
    for _ in range(12):
        mass = np.array([masses_of(learner.replay)[place] for place in places])
        grads, learner = last_gradient(programs, learner, trajectory)
        if (mass == 0.5).any():
            continue  # until each was drawn and has its own priority, which then stays
        share = np.array([*(mass[:2] / mass[:2].sum()), 1.0])
        distances = {}
        for counts in ((2, 0, 2), (1, 1, 2), (0, 2, 2)):
            weights = share[np.array(counts) > 0].min() / share
            terms = [n * w * g for n, w, g in zip(counts, weights, single, strict=True)]
            distances[counts] = np.abs(sum(terms) / CONFIG.batch_size - grads).max()
        counts = min(distances, key=distances.__getitem__)
        assert distances[counts] < 1e-6
        seen.add(counts)
    assert (1, 1, 2) in seen


def gradient_by_definition(programs, learner, place, *, through=0.0):
    """The same gradient as `gradient_of_a_window`; with `through` 1 also through the burn-in."""
    config = programs.config
    uniforms = jnp.zeros((8, 8, replays.num_uniforms(learner.replay)))
    _, windows, _, _ = programs.look(learner.params, only(learner, {place: 0.5}).replay, uniforms)
    column = place[0] // (SLOTS // CONFIG.num_shards) * 8  # the first draw of its shard

    @jax.jit
    def gradient(params, target_params, windows, through):
        inputs = network_input_unroll(windows.recurrent, windows.timestep, windows.action)
        burned = jax.tree.map(lambda x: x[:20], inputs)
        trained, timestep = jax.tree.map(lambda x: x[20:], (inputs, windows.timestep))

        def loss(params):
            q: list[Any] = []
            for variables in (params, target_params):
                core = windows.recurrent.core
                if config.start_state == "zero":
                    core = jax.tree.map(jnp.zeros_like, core)
                _, core = programs.network.apply(variables, burned, core)
                still = lax.stop_gradient(core)
                core = jax.tree.map(lambda x, y: y + through * (x - y), core, still)
                output, _ = programs.network.apply(variables, trained, core)
                q.append(q_values(output, dueling=config.dueling))
            td_errors = n_step_double_q(
                q[0],
                q[1],
                windows.action[20:],
                timestep.reward[1:],
                0.9 * timestep.discount[1:],
                valid_transitions(timestep.step_type),
                n_step=3,
                rescale=config.rescale_values,
                double=config.double_q,
            ).td_errors
            return 0.5 * jnp.square(td_errors[: config.sequence_length, column]).sum()

        return jax.grad(loss)(params)

    return flat(gradient(learner.params, learner.target.params, windows, through))


def test_burn_in_and_bootstrap_have_no_gradient(programs, learning):
    learners, trajectories, _ = learning
    learner = learners[-1]
    assert trees_differ(learner.target.params, learner.params)
    grads = gradient_of_a_window(programs, learner, trajectories[-1], (2, 4))
    np.testing.assert_allclose(grads, gradient_by_definition(programs, learner, (2, 4)), atol=1e-5, rtol=1e-4)
    wrong = gradient_by_definition(programs, learner, (2, 4), through=1.0)
    assert np.abs(grads - wrong).max() > 1e-3


VARIANTS = {
    "zero-start": {"start_state": "zero"},
    "plain": {"dueling": False, "double_q": False, "rescale_values": False, "sampling": "uniform"},
    "look-ahead": {"sequence_length": 7, "look_ahead": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_settings_change_the_loss_as_they_say(changes):
    programs = make(dataclasses.replace(CONFIG, **changes))
    learners, trajectories, _ = run(programs, FIRST_UPDATE + 1)
    learner, trajectory = learners[-1], trajectories[-1]
    masses = masses_of(learner.replay)
    assert (set(masses.ravel()) == {0.0, 1.0}) == (programs.config.sampling == "uniform")
    places = [(0, 3), (1, 2)]
    single = [gradient_of_a_window(programs, learner, trajectory, place) for place in places]
    expected = [gradient_by_definition(programs, learner, place) for place in places]
    np.testing.assert_allclose(single, expected, atol=1e-5, rtol=1e-4)
    if programs.config.sampling == "uniform":
        # Whatever the probabilities, weights are 1: the sum of what was drawn.
        grads, _ = last_gradient(
            programs, only(learner, dict(zip(places, (0.2, 0.8), strict=True))), trajectory
        )
        sums = [(n * single[0] + (2 - n) * single[1]) / CONFIG.batch_size for n in range(3)]
        assert min(np.abs(grads - total).max() for total in sums) < 1e-6


def test_q_values_of_two_heads():
    advantage = jnp.array([1.0, -2.0, ILLEGAL_LOGIT, 4.0])
    output = NetworkOutput(advantage[None, None], jnp.array([[0.5]]))
    # V + A - mean A, over the legal actions alone.
    np.testing.assert_array_equal(q_values(output, dueling=True)[0, 0], [0.5, -2.5, ILLEGAL_LOGIT, 3.5])
    np.testing.assert_array_equal(q_values(output, dueling=False)[0, 0], advantage)
    # The best legal action bootstraps, even where the illegal one has the largest value of all.
    q = jnp.broadcast_to(q_values(output, dueling=True), (2, 1, 4))
    one = jnp.ones((1, 1))
    learn = jax.jit(functools.partial(n_step_double_q, n_step=1, rescale=False))
    learned = learn(q, -q, one.astype(jnp.int32), one, one, one > 0)
    np.testing.assert_array_equal(learned.targets, [[1 - 3.5]])

    # Where nothing is legal, as an environment may say at its end, all is: what bootstraps stays sane.
    nowhere = output._replace(policy=jnp.full((1, 1, 4), ILLEGAL_LOGIT))
    np.testing.assert_array_equal(q_values(nowhere, dueling=True)[0, 0], np.full(4, 0.5, np.float32))


@pytest.mark.parametrize("action", [MultiDiscreteAction((3, 2)), BoundedAction((2,))])
def test_other_actions_are_refused_in_one_line(action):
    spec = dataclasses.replace(Stretches.spec, action=action)
    with pytest.raises(
        UserError, match=r"^env\.name: expected .* one discrete action .* found one of \w+ .*; \w+"
    ):
        make_agent(CONFIG, LSTM, spec, num_slots=SLOTS)


DQN = R2D2Config(
    unroll_length=8,
    sequence_length=1,
    look_ahead=2,
    period=1,
    n_step=3,
    replay_capacity=4096,
    min_replay=40,
    batch_size=16,
    target_update_period=3,
    epsilon_base=0.5,
    eval_epsilon=0.0,
    dueling=False,
    double_q=False,
    sampling="uniform",
    rescale_values=False,
)
MLP = NetworkConfig(hidden_sizes=(16,), init="lecun")


def test_what_a_slot_does_is_its_own(programs):
    agent = programs.agent
    actor = programs.state.actor
    ladder = epsilon_ladder(SLOTS, 0.4, 7.0)[deal_rungs(SLOTS)]
    np.testing.assert_array_equal(actor.agent.exploration.epsilon, ladder)
    np.testing.assert_allclose(sorted(ladder)[:: SLOTS - 1], [0.4**8, 0.4], rtol=1e-6)

    # Three slots among others than before do what they did.
    params = agent.acting(programs.state.learner)
    chosen = jnp.array([9, 1, 14])
    later, _ = programs.unroll(params, actor)
    mixed = jax.tree.map(lambda x, y: jnp.concatenate([x[chosen], y[3:]]), actor, later)
    for _ in range(5):
        actor, before = programs.unroll(params, actor)
        mixed, now = programs.unroll(params, mixed)
        np.testing.assert_array_equal(before.action[:, chosen], now.action[:, :3])
        np.testing.assert_array_equal(before.timestep.reward[:, chosen], now.timestep.reward[:, :3])


@pytest.mark.slow
def test_one_device_is_eight(programs, learning):
    assert jax.device_count() == 8
    learners, _, metrics = learning
    names = tuple(sorted(metrics[0]))
    agent = make_agent(CONFIG, LSTM, Stretches.spec, num_slots=SLOTS, axis_name=DATA_AXIS)
    update = make_update(agent, programs.environment, CONFIG.unroll_length, axis_name=DATA_AXIS)
    mesh = Mesh(np.array(jax.devices()), (DATA_AXIS,))
    arguments = lay_out(STATE_SPECS, programs.state, mesh), make_window(len(names)), jnp.int32(len(metrics))
    dispatch = jax.jit(shard_dispatch(make_dispatch(update, names), mesh)).lower(*arguments).compile()
    state, window = dispatch(*arguments)

    alone, together = learners[-1], state.learner
    assert_trees_equal(
        alone.replay._replace(rows=(), core=(), masses=()),
        together.replay._replace(rows=(), core=(), masses=()),
    )
    said, also_said = alone.replay.rows.actor_output, together.replay.rows.actor_output
    assert_trees_equal(
        alone.replay.rows._replace(actor_output=()), together.replay.rows._replace(actor_output=())
    )
    near: Any = {"atol": 1e-5, "rtol": 1e-5}
    np.testing.assert_allclose(flat(said), flat(also_said), **near)
    np.testing.assert_allclose(flat(alone.replay.core), flat(together.replay.core), **near)
    np.testing.assert_allclose(flat(alone.replay.masses), flat(together.replay.masses), **near)
    np.testing.assert_allclose(flat(alone.params), flat(together.params), atol=1e-6)
    np.testing.assert_allclose(flat(alone.target), flat(together.target), atol=1e-6)
    for name, total in zip(names, np.asarray(window.metric_sums.total), strict=True):
        np.testing.assert_allclose(total, sum(figures[name] for figures in metrics), **near)

    # Each device keeps its own slots' replay; what they exchange is sums of gradients and figures.
    for leaf in jax.tree.leaves(together.replay):
        assert leaf.addressable_shards[0].data.size * 8 == leaf.size
    exchanges = set(
        re.findall(r"(all-\w+|collective-\w+|reduce-scatter)(?:-start)?\(", str(dispatch.as_text()))
    )
    assert exchanges == {"all-reduce"}


@pytest.fixture(scope="module")
def dqn():
    """Agent, window, dispatch and how to begin, with a replay of 26 MB."""
    environment = make_environment(EnvConfig("zerocopy:Catch", settings={"rows": 40, "columns": 40}))
    agent = make_agent(DQN, MLP, environment.spec, num_slots=8)
    update = make_update(agent, environment, DQN.unroll_length)

    def begin(seed):
        return init_train_state(agent, environment, seed, 8)

    names = metric_names(update, jax.eval_shape(begin, 0))
    return agent, make_window(len(names)), make_dispatch(update, names), begin


def compile_without_copies(dispatch, state, window):
    """The donated program, of which no part is as large as a tenth of a replay."""
    program = jax.jit(dispatch, donate_argnums=0).lower(state, window, jnp.int32(1)).compile()
    memory: Any = program.memory_analysis()
    replay_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.learner.replay))
    assert replay_bytes > 20e6 and memory.alias_size_in_bytes > replay_bytes
    assert memory.temp_size_in_bytes < 0.1 * replay_bytes
    return program


def test_dqn_is_settings_and_nothing_copies_the_replay(dqn):
    _, window, dispatch, begin = dqn
    state = jax.jit(begin)(0)
    first_params = flat(state.learner.params)
    program = compile_without_copies(dispatch, state, window)
    for updates in (1, 2, 4):
        state, window = program(state, window, jnp.int32(updates))
    learner = state.learner
    # Windows of three transitions begin at every step: all but the newest three rows.
    assert int(learner.replay.completed.sum()) == 8 * (7 * 8 - 3)
    assert set(flat(learner.replay.masses[-1])) == {0.0, 1.0}  # uniform
    assert int(adam(learner).count) == 7 and int(learner.target.age) == 7 % 3
    assert np.abs(flat(learner.params) - first_params).max() > 1e-3


@pytest.fixture(scope="module")
def recurrent():
    """The same of an agent with a core and prioritised sampling."""
    config = dataclasses.replace(CONFIG, replay_capacity=80_000)
    environment = Vectorized(Stretches())
    agent = make_agent(config, LSTM, environment.spec, num_slots=SLOTS)
    update = make_update(agent, environment, config.unroll_length)

    def begin(seed):
        return init_train_state(agent, environment, seed, SLOTS)

    names = metric_names(update, jax.eval_shape(begin, 0))
    return agent, make_window(len(names)), make_dispatch(update, names), begin


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dqn", "recurrent"])
def test_two_seeds_are_each_alone(kind, request):
    _, window, dispatch, begin = request.getfixturevalue(kind)
    states = jax.jit(jax.vmap(begin))(jnp.arange(2))
    members = [jax.tree.map(lambda leaf, seed=seed: leaf[seed], states) for seed in range(2)]
    both = compile_without_copies(jax.vmap(dispatch, in_axes=(0, None, None)), states, window)
    one = compile_without_copies(dispatch, members[0], window)
    together, _ = both(states, window, jnp.int32(FIRST_UPDATE + 2))
    for seed, member in enumerate(members):
        before = flat(member.learner.params)
        alone, _ = one(member, window, jnp.int32(FIRST_UPDATE + 2))
        mine = jax.tree.map(lambda leaf, seed=seed: leaf[seed], together.learner)
        np.testing.assert_array_equal(mine.replay.rows.last_action, alone.learner.replay.rows.last_action)
        np.testing.assert_allclose(flat(mine.replay.masses), flat(alone.learner.replay.masses), atol=1e-4)
        np.testing.assert_allclose(flat(mine.params), flat(alone.learner.params), atol=1e-5)
        assert np.abs(flat(mine.params) - before).max() > 1e-3


@pytest.mark.parametrize("epsilon", [0.0, 0.75])
def test_evaluation_has_its_own_epsilon(epsilon):
    environment = make_environment(EnvConfig("zerocopy:Catch"))
    agent = make_agent(dataclasses.replace(DQN, eval_epsilon=epsilon), MLP, environment.spec, num_slots=8)
    network = make_network(MLP, environment.spec)
    # More slots than train.
    slots = jnp.arange(600, dtype=jnp.int32)
    keys = slot_keys(0, Stream.EVALUATION_AGENT, slots)

    @jax.jit
    def one_step(key):
        params = ActingParams(init_network(network, environment.spec, 1, key))
        state = agent.initial_state(keys, slots)
        _, timestep = environment.reset(slot_keys(0, Stream.EVALUATION_ENVIRONMENT, slots))
        action, said, after = agent.act(params, state, timestep, Mode.EVALUATE)
        same = jax.random.key_data(after.exploration.key) == jax.random.key_data(state.exploration.key)
        return action, said.q_value < said.q_max, same.all(-1)

    action, worse, same_key = one_step(stream_key(0, Stream.LEARNER))
    # A third of the random actions are the best.
    assert abs(worse.mean() - epsilon * 2 / 3) < (0.06 if epsilon else 1e-9)
    assert same_key.all() == (epsilon == 0.0) and same_key.any() == (epsilon == 0.0)
    assert set(action.tolist()) <= {0, 1, 2}
