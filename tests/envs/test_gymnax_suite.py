"""The adapter against gymnax itself, and the ends of episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs import BoundedAction, DiscreteAction, StepType, make
from zerocopy_envs.gymnax_suite import registration


def key(seed=0):
    return jax.random.key(seed, impl="threefry2x32")


def ends(environment, choose, seed=0):
    """Rewards of one episode and its LAST timestep."""
    step = jax.jit(environment.step)
    state, timestep = jax.jit(environment.reset)(key(seed))
    rewards = []
    while timestep.step_type != StepType.LAST:
        state, timestep = step(state, choose(timestep, len(rewards)))
        rewards.append(float(timestep.reward))
    return rewards, timestep


def always(action):
    return lambda timestep, t: np.int32(action)


@pytest.mark.parametrize("seed", [0, 1])
def test_cartpole_agrees_with_gymnax(seed):
    environment = make("gymnax:CartPole-v1")
    theirs, params = registration.make("CartPole-v1")
    observation, inner = theirs.reset_env(key(seed), params)
    state, timestep = environment.reset(key(seed))
    step, their_step = jax.jit(environment.step), jax.jit(theirs.step_env)
    for t in range(200):
        np.testing.assert_allclose(timestep.observation, observation, rtol=1e-4, atol=1e-5)
        action = jnp.int32(t % 3 != 0)
        observation, inner, reward, terminated, _ = their_step(key(), inner, action, params)
        state, timestep = step(state, action)
        assert timestep.reward == reward
        assert (timestep.discount == 0) == terminated == (timestep.step_type == StepType.LAST)
        if terminated:
            break
    else:
        pytest.fail("no end within 200 steps")


def test_a_time_limit_alone_is_a_truncation():
    rewards, last = ends(
        make("gymnax:Pendulum-v1", max_steps_in_episode=1), lambda *_: np.zeros(1, np.float32)
    )
    assert len(rewards) == 1 and last.discount == 1
    rewards, last = ends(make("gymnax:CartPole-v1", max_steps_in_episode=5), always(1))
    assert len(rewards) == 5 and last.discount == 1


def test_a_fall_is_a_termination_also_on_the_last_step_allowed():
    rewards, last = ends(make("gymnax:CartPole-v1"), always(1))
    assert len(rewards) < 15 and last.discount == 0
    limited = make("gymnax:CartPole-v1", max_steps_in_episode=len(rewards))
    again, last = ends(limited, always(1))
    assert len(again) == len(rewards) and last.discount == 0
    shorter = make("gymnax:CartPole-v1", max_steps_in_episode=len(rewards) - 1)
    assert ends(shorter, always(1))[1].discount == 1


@pytest.mark.parametrize(
    ("name", "settings", "length", "discount"),
    [
        ("DeepSea-bsuite", {"size": 5}, 5, 0),
        ("Catch-bsuite", {"rows": 7}, 6, 0),
        ("SimpleBandit-bsuite", {}, 1, 0),
        ("MemoryChain-bsuite", {"memory_length": 3}, 4, 0),
        ("UmbrellaChain-bsuite", {"chain_length": 4}, 4, 0),
        ("DiscountingChain-bsuite", {"max_steps_in_episode": 6}, 6, 1),
        ("BernoulliBandit-misc", {"max_steps_in_episode": 6}, 6, 1),
    ],
)
def test_fixed_length_episodes(name, settings, length, discount):
    rewards, last = ends(make(f"gymnax:{name}", **settings), always(0))
    assert (len(rewards), last.discount) == (length, discount)


@pytest.mark.parametrize("seed", range(2))
def test_memory_chain_pays_who_remembers_the_first_observation(seed):
    environment = make("gymnax:MemoryChain-bsuite", memory_length=10)
    _, first = environment.reset(key(seed))
    bit = int(first.observation[2] > 0)
    rewards, last = ends(environment, always(bit), seed)
    assert rewards == [0.0] * 10 + [1.0] and last.discount == 0
    assert ends(environment, always(1 - bit), seed)[0] == [0.0] * 10 + [-1.0]


def test_bounded_actions_are_scaled_and_clipped():
    environment = make("gymnax:Pendulum-v1")
    assert environment.spec.action == BoundedAction((1,))
    theirs, params = registration.make("Pendulum-v1")
    _, inner = theirs.reset_env(key(), params)
    state, _ = environment.reset(key())
    for ours, torque in ((0.5, 1.0), (-1.0, -2.0), (7.0, 2.0)):
        _, timestep = environment.step(state, jnp.array([ours], jnp.float32))
        expected = theirs.step_env(key(), inner, jnp.array([torque]), params)[0]
        np.testing.assert_allclose(timestep.observation, expected, rtol=1e-5, atol=1e-6)


def test_settings_reach_parameters_and_constructor():
    lake = make("gymnax:FrozenLake-misc", map_name="8x8", is_slippery=False)
    assert lake.spec.observation.shape == (64,) and lake.spec.max_episode_steps == 200
    assert lake.spec.action == DiscreteAction(4)
    _, first = lake.reset(key())
    np.testing.assert_array_equal(first.observation, np.eye(64)[0])
    rewards, last = ends(lake, lambda timestep, t: np.int32(2))
    assert len(rewards) == 200 and last.discount == 1 and last.observation.argmax() == 7
    acrobot = make("gymnax:Acrobot-v1", available_torque=[-2, 0, 2], dt=1)
    assert acrobot.reset(key())[1].observation.shape == (6,)


def test_random_steps_follow_the_episode_key():
    environment = make("gymnax:FourRooms-misc", fail_prob=0.75)

    def path(seed):
        state, timestep = environment.reset(key(seed))
        return np.asarray(jax.lax.scan(environment.step, state, np.zeros(30, np.int32))[1].observation)

    assert np.array_equal(path(0), path(0)) and not np.array_equal(path(0), path(1))


def test_plotting_packages_are_left_for_when_they_are_wanted():
    import sys

    from zerocopy_envs.deferred_plotting import deferred_plotting

    before = sys.modules.pop("seaborn", None)
    try:
        with deferred_plotting():
            assert "seaborn" in sys.modules
        assert "seaborn" not in sys.modules
    finally:
        if before:
            sys.modules["seaborn"] = before
    assert callable(registration.pong.plt.subplots)
