"""Adapters of optional JAX suites: ends of episodes, masks and settings. What is missing is not collected."""

import jax
import numpy as np
import pytest
from optional_suites import OPTIONAL, missing_suites

from zerocopy_envs import (
    BoundedAction,
    DiscreteAction,
    MultiDiscreteAction,
    StepType,
    UserError,
    environment_names,
    make,
    registry,
)

# What other packages warn of in their own code is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

HERE = set(OPTIONAL) - set(missing_suites())


def cases(*rows):
    """Parameters of those rows whose first entry, an environment's name, is of a suite that is here."""
    return [row for row in rows if row[0].split(":")[0] in HERE]


def last_of(environment, action, seed=0):
    """The number of steps of an episode that does one thing, and its LAST."""
    key = jax.random.key(seed, impl="threefry2x32")
    step = jax.jit(environment.step)
    state, timestep = jax.jit(environment.reset)(key)
    t = 0
    while timestep.step_type != StepType.LAST:
        state, timestep = step(state, action)
        t += 1
    return t, timestep


def test_every_suite_is_listed_with_the_command_that_installs_it():
    for suite in OPTIONAL:
        assert environment_names(suite)
        assert registry.find_suite(suite).install == f'pip install "zerocopy_seed[{suite}]"'


@pytest.mark.parametrize("suite", sorted(set(OPTIONAL) - HERE))
def test_a_suite_that_is_not_here_gives_one_line(suite):
    remedy = missing_suites()[suite].replace('"', ".").replace("[", ".").replace("]", ".")
    with pytest.raises(UserError, match=remedy) as caught:
        make(environment_names(suite)[0])
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "action"),
    cases(
        ("craftax:Craftax-Classic-Symbolic-v1", {"max_timesteps": 3}, 0),
        ("navix:Navix-Empty-5x5-v0", {"max_steps": 3}, 0),
        ("xminigrid:MiniGrid-Empty-5x5", {"max_steps": 3}, 1),
        ("jumanji:Maze-v0", {"time_limit": 3}, 0),
        ("pgx:minatar-breakout", {"max_steps": 3}, 0),
        ("octax:brix", {"max_num_steps_per_episodes": 3}, 0),
    ),
)
def test_a_time_limit_alone_is_a_truncation(name, settings, action):
    environment = make(name, **settings)
    assert environment.spec.max_episode_steps == 3
    steps, last = last_of(environment, np.int32(action))
    assert (steps, float(last.discount)) == (3, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "action"),
    cases(("jumanji:Snake-v1", 0), ("pgx:2048", 0), ("pgx:minatar-breakout", 0), ("octax:brix", 0)),
)
def test_a_lost_game_is_a_termination(name, action):
    steps, last = last_of(make(name), np.int32(action))
    assert steps > 1 and last.discount == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path"),
    cases(
        ("navix:Navix-Empty-5x5-v0", [2, 2, 1, 2, 2]),
        ("xminigrid:MiniGrid-Empty-5x5", [0, 0, 1, 0, 0]),
    ),
)
def test_the_goal_is_a_termination_also_on_the_last_step_allowed(name, path):
    environment = make(name, max_steps=len(path))
    state, timestep = environment.reset(jax.random.key(0, impl="threefry2x32"))
    step = jax.jit(environment.step)
    for action in path:
        assert timestep.step_type != StepType.LAST
        state, timestep = step(state, np.int32(action))
    assert timestep.step_type == StepType.LAST and timestep.discount == 0 and timestep.reward > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "action", "mask"),
    cases(
        ("jumanji:Tetris-v0", DiscreteAction(40), 40),
        ("jumanji:Cleaner-v0", MultiDiscreteAction((4, 4, 4)), 12),
        ("jumanji:Maze-v0", DiscreteAction(4), 4),
        ("jumanji:RubiksCube-v0", DiscreteAction(18), None),
        ("jumanji:SearchAndRescue-v0", BoundedAction((2, 2)), None),
        ("pgx:2048", DiscreteAction(4), 4),
    ),
)
def test_actions_and_masks(name, action, mask):
    spec = make(name).spec
    assert spec.action == action
    found = spec.observation.get("action_mask") if isinstance(spec.observation, dict) else None
    assert (None if found is None else found.shape) == (None if mask is None else (mask,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "words"),
    cases(
        ("craftax:Craftax-Symbolic-v1", {"max_timestep": 3}, "did you mean max_timesteps"),
        ("craftax:Craftax-Symbolic-v1", {"max_timesteps": 0}, ">= 1"),
        ("navix:Navix-Empty-5x5-v1", {}, "the installed navix"),
        ("navix:Navix-Empty-5x5-v0", {"observation": "pixels"}, "known: symbolic"),
        ("xminigrid:MiniGrid-Empty-5x5", {"max_steps": 0}, ">= 1"),
        ("jumanji:Snake-v1", {"time_limits": 3}, "did you mean time_limit"),
        ("pgx:tic_tac_toe", {}, "known: 2048"),
        ("octax:brix", {"frame_skip": 0}, ">= 1"),
    ),
)
def test_mistakes_get_one_line(name, settings, words):
    with pytest.raises(UserError, match=words) as caught:
        make(name, **settings)
    assert "\n" not in str(caught.value)
