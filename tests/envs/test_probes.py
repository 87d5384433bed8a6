"""The probes are worth what their docstrings say."""

import jax
import numpy as np
import pytest

from zerocopy_envs import StepType, make


def episode(name, choose, seed=0, **settings):
    environment = make(f"zerocopy_envs.probes:{name}", **settings)
    state, timestep = environment.reset(jax.random.key(seed, impl="threefry2x32"))
    stream = [timestep]
    while stream[-1].step_type != StepType.LAST:
        state, timestep = environment.step(state, choose(stream[-1].observation))
        stream.append(timestep)
    return [float(t.reward) for t in stream[1:]], [float(t.discount) for t in stream[1:]], stream


def test_constant_observed_delayed_and_chosen():
    assert episode("constant_reward", lambda _: np.int32(0))[:2] == ([1.0], [0.0])
    assert episode("delayed_reward", lambda _: np.int32(0))[:2] == ([0.0, 1.0], [1.0, 0.0])
    assert episode("chosen_reward", lambda _: np.int32(1))[:2] == ([1.0], [0.0])
    assert episode("chosen_reward", lambda _: np.int32(0))[:2] == ([-1.0], [0.0])
    seen = set()
    for seed in range(8):
        rewards, _, stream = episode("observed_reward", lambda _: np.int32(0), seed)
        assert rewards == [stream[0].observation[0]]
        seen.add(rewards[0])
    assert seen == {-1.0, 1.0}


def test_truncated_never_terminates():
    assert episode("truncated", lambda _: np.int32(0), length=3)[:2] == ([1.0] * 3, [1.0] * 3)


@pytest.mark.parametrize("seed", range(4))
def test_masked(seed):
    def illegal(observation):
        return np.int32(np.argmin(observation["action_mask"]))

    def target(observation):
        return np.int32(np.argmax(observation["target"]))

    assert episode("masked", target, seed)[0] == [1.0]
    assert episode("masked", illegal, seed)[0] == [10.0]
    observation = episode("masked", target, seed)[2][0].observation
    assert observation["action_mask"].sum() == 2 and observation["action_mask"][target(observation)]


@pytest.mark.parametrize("seed", range(4))
def test_two_heads(seed):
    def copy(observation):
        return np.array([observation[:3].argmax(), observation[3:].argmax()], np.int32)

    assert episode("two_heads", copy, seed)[0] == [1.0]
    assert episode("two_heads", lambda o: (copy(o) + 1) % np.array([3, 2], np.int32), seed)[0] == [0.0]
    assert episode("two_heads", lambda o: (copy(o) + [1, 0]) % np.array([3, 2], np.int32), seed)[0] == [0.5]
