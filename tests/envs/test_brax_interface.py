"""Time limits, repeated actions and types, of a toy with brax's interface."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs import StepType
from zerocopy_envs.brax_interface import BraxInterface

State = pytest.importorskip("brax.envs.base").State


class Walk:
    """Adds its action to its place, which is also the reward; done past 3. Types as brax leaves them."""

    action_size = 1

    def reset(self, key):
        place = jax.random.uniform(key, (1,))
        zero = jnp.zeros(())
        return State(place, place, zero, zero, {"reward": zero}, {"key": key, "steps": zero})

    def step(self, state, action):
        place = state.pipeline_state + action
        state.metrics.update(reward=place[0])
        info = {**state.info, "steps": state.info["steps"] + 1}
        done = jnp.where(place[0] > 3, 1.0, 0.0)
        return state.replace(pipeline_state=place, obs=place, reward=place[0], done=done, info=info)


def play(actions, max_episode_steps=100, action_repeat=1):
    """The place at the start, and the timesteps after each action."""
    environment = BraxInterface(Walk(), "pipeline_state", max_episode_steps, action_repeat)
    state, timestep = environment.reset(jax.random.key(0, impl="threefry2x32"))
    start, steps = float(timestep.observation[0]), []
    for action in actions:
        state, timestep = environment.step(state, np.array([action], np.float32))
        steps.append(timestep)
    return start, steps, state


def test_done_terminates_and_the_limit_truncates():
    start, steps, state = play([1, 1, 1])
    assert [step.step_type for step in steps] == [StepType.MID, StepType.MID, StepType.LAST]
    assert [step.discount for step in steps] == [1, 1, 0]
    np.testing.assert_allclose([step.reward for step in steps], [start + 1, start + 2, start + 3], rtol=1e-6)
    assert (state.time, state.info["steps"]) == (3, 3)
    _, steps, _ = play([1, 1], max_episode_steps=2)
    assert (steps[-1].step_type, steps[-1].discount) == (StepType.LAST, 1)
    _, steps, _ = play([1, 1, 1], max_episode_steps=3)
    assert (steps[-1].step_type, steps[-1].discount) == (StepType.LAST, 0)


def test_a_simulation_that_broke_ends_and_shows_numbers():
    _, steps, _ = play([1, np.nan])
    broken = steps[-1]
    assert (broken.step_type, broken.discount, broken.reward) == (StepType.LAST, 0, 0)
    np.testing.assert_array_equal(broken.observation, [0])


def test_actions_are_clipped():
    start, steps, _ = play([7, -7])
    np.testing.assert_allclose([step.observation[0] for step in steps], [start + 1, start], rtol=1e-6)


def test_a_repeated_action_adds_rewards_and_stops_at_the_end():
    start, steps, state = play([1, 1], action_repeat=2)
    assert [step.discount for step in steps] == [1, 0]
    np.testing.assert_allclose([step.reward for step in steps], [2 * start + 3, start + 3], rtol=1e-6)
    np.testing.assert_allclose(steps[-1].observation, [start + 3], rtol=1e-6)
    _, steps, _ = play([0, 0], action_repeat=2, max_episode_steps=2)
    assert (steps[-1].step_type, steps[-1].discount) == (StepType.LAST, 1)
