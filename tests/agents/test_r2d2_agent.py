"""R2D2 with an LSTM on episodes that end inside its sequences. One set of compiled programs serves most tests."""

import dataclasses
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import ArraySpec, DiscreteAction, EnvironmentSpec, StepType, TimeStep
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed import replay as replays
from zerocopy_seed.agents import make_agent
from zerocopy_seed.agents import r2d2 as r2d2_module
from zerocopy_seed.agents.r2d2 import q_values
from zerocopy_seed.config import NetworkConfig, R2D2Config
from zerocopy_seed.loops.on_device import (
    DATA_AXIS,
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
    shard_dispatch,
    shard_train_state,
)
from zerocopy_seed.networks import NetworkOutput, make_network
from zerocopy_seed.ops.distributions import ILLEGAL_LOGIT
from zerocopy_seed.ops.exploration import deal_rungs, epsilon_ladder
from zerocopy_seed.ops.q_learning import n_step_double_q
from zerocopy_seed.recurrent import network_input_unroll
from zerocopy_seed.replay import sum_tree
from zerocopy_seed.rollout import unroll
from zerocopy_seed.types import Mode, valid_transitions

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
        return state, self._timestep(state, step_type, reward, jnp.where(ended & ~cut, 0.0, 1.0))

    def _timestep(self, state, step_type, reward, discount):
        angle = 7.0 * state[-1] + state[0].astype(jnp.float32)
        return TimeStep(step_type, reward, discount, jnp.stack([jnp.sin(angle), jnp.cos(1.7 * angle)]))


class Programs(NamedTuple):
    """What is compiled once, and the state of a run that has not begun."""

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
    layout = replays.Layout(
        config.unroll_length,
        config.burn_in + config.sequence_length + config.look_ahead,
        config.period,
        network.frame_stack - 1,
        -(-config.replay_capacity // num_slots),
    )

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
        agent, environment, module, state, jax.jit(one_unroll), jax.jit(agent.learn), jax.jit(look)
    )


def run(programs, num_updates, **settings):
    """Unrolls and learns. Returns every LearnerState, the first one before anything, and all trajectories."""
    learner, actor = programs.state.learner, programs.state.actor
    learner = with_settings(learner, **settings)
    learners, trajectories = [learner], []
    for _ in range(num_updates):
        actor, trajectory = programs.unroll(programs.agent.acting(learner), actor)
        learner, _ = programs.learn(learner, trajectory)
        learners.append(learner)
        trajectories.append(trajectory)
    return learners, trajectories


def with_settings(learner, **settings):
    changed = {name: jnp.float32(value) for name, value in settings.items()}
    assert changed.keys() <= learner.settings.keys()
    return learner._replace(settings={**learner.settings, **changed})


@pytest.fixture(scope="module")
def programs():
    return make()


@pytest.fixture(scope="module")
def frozen(programs):
    return run(programs, 13, learning_rate=0.0)


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
    return np.sign(y) * (
        ((np.sqrt(1 + 4e-3 * (np.abs(y) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1
    )


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
                    total += weight * reward[now, slot]
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
    learners, trajectories = frozen
    before = FIRST_UPDATE - 1
    expected = expected_masses(trajectories[:before])
    assert (expected > 0).sum() == 2 * SLOTS
    np.testing.assert_allclose(masses_of(learners[before].replay), expected, rtol=2e-5, atol=1e-6)
    # Weights that stay say the same again, from stored states and burn-in: learning changes no priority.
    expected = expected_masses(trajectories)
    assert (expected > 0).sum() == (STARTS - 4) * SLOTS
    np.testing.assert_allclose(masses_of(learners[-1].replay), expected, rtol=2e-4, atol=1e-5)
