"""Gymnasium environments against episodes played by hand, and toys whose values are known."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from zerocopy_envs import (
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    MultiDiscreteAction,
    StepType,
    UserError,
    environment_kind,
    gymnasium_suite,
    make,
)
from zerocopy_envs.testing import check_environment

FIRST, MID, LAST = StepType


class Toy(gymnasium.Env):
    """Ends after 3 steps with the flags it was given; shows the action it got and the step."""

    def __init__(self, action_space, flags=(True, False), observation_space=None):
        self.action_space, self._flags = action_space, flags
        self.observation_space = observation_space or spaces.Dict(
            {
                "got": spaces.Box(-100, 100, (2,), np.float64),
                "pair": spaces.Tuple([spaces.Discrete(4, start=2), spaces.Box(0, 9, (1, 2), np.int64)]),
                "action_mask": spaces.MultiBinary(5),
                "cards": spaces.MultiDiscrete([2, 4], start=[0, 7]),
            }
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return self._observe(np.zeros(2)), {}

    def step(self, action):
        self._time += 1
        terminated, truncated = self._flags if self._time == 3 else (False, False)
        return self._observe(action), 7.0, terminated, truncated, {"action_mask": np.ones(5, np.int8)}

    def _observe(self, action):
        got = np.zeros(2)
        got[: np.size(action)] = action
        return {
            "cards": np.array([1, 7 + self._time]),
            "action_mask": np.array([1, 0, 1, 0, self._time == 0], np.int8),
            "pair": (np.int64(2 + self._time), np.full((1, 2), self._time)),
            "got": got,
        }


@pytest.fixture(autouse=True)
def toy():
    gymnasium.register("Toy-v3", lambda **settings: Toy(**settings))
    yield
    del gymnasium.registry["Toy-v3"]


def play(environment, actions, seeds=(0, 1)):
    """Timesteps of a reset and of each batch of actions."""
    timesteps = [environment.reset(seeds)]
    for action in actions:
        environment.send(np.asarray(action))
        slots, timestep = environment.recv()
        np.testing.assert_array_equal(slots, np.arange(environment.num_envs))
        timesteps.append(timestep)
    environment.close()
    return timesteps


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {"max_episode_steps": 30, "g": 9.0}),
        ("Taxi-v4", {"max_episode_steps": 50}),
        ("Blackjack-v1", {}),
        ("Toy-v3", {"action_space": spaces.Discrete(5, start=-2)}),
        ("Toy-v3", {"action_space": spaces.MultiDiscrete([2, 3]), "flags": (False, True)}),
    ],
)
def test_conforms(name, settings):
    check_environment(f"gymnasium:{name}", num_envs=3, **settings)


def test_equals_episodes_played_by_hand():
    actions = np.random.default_rng(0).integers(0, 2, (120, 2), np.int32)
    environment = make("gymnasium:CartPole-v1", num_envs=2)
    assert environment_kind(environment) == "host" and environment.num_envs == 2
    assert (environment.spec.action, environment.spec.max_episode_steps) == (DiscreteAction(2), 500)
    timesteps, num_episodes = play(environment, actions, [11, 3]), 0
    for slot, seed in enumerate((11, 3)):
        alone = gymnasium.make("CartPole-v1")
        observation, _ = alone.reset(seed=seed)
        expected = (FIRST, 0, 1)
        for t, timestep in enumerate(timesteps):
            got = (timestep.step_type[slot], timestep.reward[slot], timestep.discount[slot])
            assert got == expected, f"slot {slot}, step {t}"
            np.testing.assert_array_equal(timestep.observation[slot], observation)
            if expected[0] == LAST:
                num_episodes += 1
                observation, _ = alone.reset()
                expected = (FIRST, 0, 1)
            elif t < len(actions):
                observation, _, terminated, _, _ = alone.step(actions[t, slot])
                expected = (LAST, 1, 0) if terminated else (MID, 1, 1)
    assert num_episodes > 5


@pytest.mark.parametrize(
    ("flags", "discount"), [((True, False), 0), ((False, True), 1), ((True, True), 0)], ids=str
)
def test_only_a_termination_ends_the_discount(flags, discount):
    environment = make("gymnasium:Toy-v3", num_envs=2, action_space=spaces.Discrete(5), flags=flags)
    timesteps = play(environment, [[1, 1]] * 7)
    assert [int(t.step_type[0]) for t in timesteps] == [FIRST, MID, MID, LAST, FIRST, MID, MID, LAST]
    assert [float(t.discount[1]) for t in timesteps] == [1, 1, 1, discount, 1, 1, 1, discount]
    assert [float(t.reward[1]) for t in timesteps] == [0, 7, 7, 7, 0, 7, 7, 7]
    assert [float(t.observation["pair"][1][0, 0, 0]) for t in timesteps] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_an_episode_of_one_step():
    environment = make("gymnasium:Pendulum-v1", num_envs=2, max_episode_steps=1)
    assert environment.spec.max_episode_steps == 1
    timesteps = play(environment, [np.zeros((2, 1), np.float32)] * 3)
    assert [int(t.step_type[0]) for t in timesteps] == [FIRST, LAST, FIRST, LAST]
    assert [float(t.discount[0]) for t in timesteps] == [1] * 4
    assert timesteps[1].reward[0] < 0 and timesteps[2].reward[0] == 0


def test_observations_keep_their_names():
    environment = make("gymnasium:Toy-v3", num_envs=2, action_space=spaces.Discrete(5))
    assert environment.spec.observation == {
        "got": ArraySpec((2,), np.float32, -100, 100),
        "pair": (ArraySpec((4,), np.float32, 0, 1), ArraySpec((1, 2), np.int32, 0, 9)),
        "action_mask": ArraySpec((5,), np.bool_),
        "cards": ArraySpec((6,), np.float32, 0, 1),
    }
    _, timestep = play(environment, [[3, 4]])
    observation = timestep.observation
    np.testing.assert_array_equal(observation["got"], [[3, 0], [4, 0]])
    np.testing.assert_array_equal(observation["pair"][0], [[0, 1, 0, 0]] * 2)
    np.testing.assert_array_equal(observation["pair"][1], np.ones((2, 1, 2)))
    np.testing.assert_array_equal(observation["action_mask"], [[1, 0, 1, 0, 0]] * 2)
    np.testing.assert_array_equal(observation["cards"], [[0, 1, 0, 1, 0, 0]] * 2)


@pytest.mark.parametrize(
    ("space", "spec", "sent", "got"),
    [
        (spaces.Discrete(5), DiscreteAction(5), [0, 4], [[0, 0], [4, 0]]),
        (spaces.Discrete(5, start=-2), DiscreteAction(5), [0, 4], [[-2, 0], [2, 0]]),
        (
            spaces.MultiDiscrete([2, 11], start=[0, 25]),
            MultiDiscreteAction((2, 11)),
            [[0, 0], [1, 10]],
            [[0, 25], [1, 35]],
        ),
        (spaces.MultiDiscrete([3]), MultiDiscreteAction((3,)), [[0], [2]], [[0, 0], [2, 0]]),
        (spaces.MultiBinary(2), MultiDiscreteAction((2, 2)), [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
        (
            spaces.Box(np.array([-1, 0], np.float32), np.array([3, 10], np.float32)),
            BoundedAction((2,)),
            np.array([[-1, 1], [0, 0.5]], np.float32),
            [[-1, 10], [1, 7.5]],
        ),
    ],
    ids=str,
)
def test_actions_reach_the_environment_as_its_space_has_them(space, spec, sent, got):
    environment = make("gymnasium:Toy-v3", num_envs=2, action_space=space)
    assert environment.spec.action == spec
    np.testing.assert_array_equal(play(environment, [sent])[-1].observation["got"], got)


def test_another_autoreset_mode_is_refused(monkeypatch):
    def same_step(make_all, copy, autoreset_mode):
        return SyncVectorEnv(make_all, copy=copy, autoreset_mode=AutoresetMode.SAME_STEP)

    monkeypatch.setattr(gymnasium_suite, "SyncVectorEnv", same_step)
    with pytest.raises(UserError, match="NEXT_STEP.*SAME_STEP"):
        make("gymnasium:CartPole-v1")


DISCRETE = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("CartPole-v2", {}, ["'gymnasium:CartPole-v2'", "did you mean CartPole-v1?"]),
        ("CartPole", {}, ["did you mean CartPole-v1?"]),
        ("Maze-v77", {}, ["gymnasium:MODULE:ID"]),
        ("no_such_module:Maze-v0", {}, ["no_such_module"]),
        ("CartPole-v1", {"sutton_barto": True}, ["'sutton_barto'", "did you mean sutton_barto_reward?"]),
        ("CartPole-v1", {"sutton_barto_reward": 3}, ["'sutton_barto_reward'", "bool", "3"]),
        ("CartPole-v1", {"num_envs": 0}, ["num_envs", ">= 1", "0"]),
        ("Toy-v3", {"action_space": spaces.Box(-np.inf, 1, (2,))}, ["action space", "finite bounds"]),
        ("Toy-v3", {"action_space": spaces.Text(3)}, ["action space", "Text"]),
        (
            "Toy-v3",
            {"action_space": DISCRETE, "observation_space": spaces.Dict(a=spaces.Tuple([spaces.Text(3)]))},
            ["observation.a[0]", "Text"],
        ),
    ],
)
def test_mistakes_get_one_line(name, settings, words):
    with pytest.raises(UserError) as caught:
        make(f"gymnasium:{name}", **settings)
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message, message


def test_wrong_seeds_and_actions_are_refused():
    environment = make("gymnasium:CartPole-v1", num_envs=2)
    with pytest.raises(UserError, match="seeds: expected 2 of them"):
        environment.reset([1])
    environment.reset([1, 2])
    with pytest.raises(UserError, match="recv: expected a send"):
        environment.recv()
    with pytest.raises(UserError, match="slot 1: action: expected 0 <= action < 2, found 2"):
        environment.send(np.array([0, 2]))
    with pytest.raises(UserError, match=r"expected int32\[2\], found float64\[2\]"):
        environment.send(np.zeros(2))
    bounded = make("gymnasium:Pendulum-v1", num_envs=2)
    bounded.reset([1, 2])
    with pytest.raises(UserError, match=r"slot 0: action: expected entries in \[-1, 1\], found \[nan\]"):
        bounded.send(np.array([[np.nan], [0]], np.float32))


def test_a_new_process_finds_atari_and_imports_no_jax():
    program = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]}
from zerocopy_envs import make
pong = make("gymnasium:ALE/Pong-v5")
skiing = make("ale:Skiing", full_action_space=True)
print(pong.spec.observation.shape, pong.spec.action.num_values, skiing.spec.action.num_values)
print(pong.reset([0]).reward, skiing.reset([0]).reward, [m for m in ("jax", "jaxlib") if m in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert out.stdout == "(210, 160, 3) 6 9\n[0.] [0.] []\n" and out.stderr == "", out
