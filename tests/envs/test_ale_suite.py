"""Atari through ALE: a few hundred real steps of small episodes."""

import ale_py
import gymnasium
import numpy as np
import pytest
from PIL import Image

from zerocopy_envs import ArraySpec, DiscreteAction, StepType, UserError, environment_names, make
from zerocopy_envs.testing import check_environment

FIRST, MID, LAST = StepType
SMALL = {"num_threads": 1, "repeat_action_probability": 0.0}


def play(environment, num_steps, seeds, seed=0):
    """Fields [T+1, N, ...] of a reset and random steps."""
    generator = np.random.default_rng(seed)
    timesteps = [environment.reset(seeds)]
    for _ in range(num_steps):
        environment.send(generator.integers(0, environment.spec.action.num_values, len(seeds)))
        slots, timestep = environment.recv()
        np.testing.assert_array_equal(slots, np.arange(len(seeds)))
        timesteps.append(timestep)
    return [np.stack(field) for field in zip(*timesteps, strict=True)]


def test_every_game_is_listed():
    gymnasium.register_envs(ale_py)
    ids = {id for id in gymnasium.registry if id.startswith("ALE/") and id.endswith("-v5")}
    assert set(environment_names("ale")) == {f"ale:{id[4:-3]}" for id in ids} and len(ids) == 104


def test_spec():
    pong = make("ale:Pong", num_envs=3)
    assert pong.num_envs == 3
    assert (pong.spec.observation, pong.spec.action) == (
        ArraySpec((84, 84), np.uint8, 0, 255),
        DiscreteAction(6),
    )
    assert (pong.spec.max_episode_steps, pong.spec.action_repeat) == (27_000, 4)
    spec = make("ale:Pong", full_action_space=True, frameskip=3, max_num_frames_per_episode=10).spec
    assert (spec.action, spec.max_episode_steps, spec.action_repeat) == (DiscreteAction(18), 4, 3)


def test_pong_conforms():
    check_environment("ale:Pong", num_envs=2, num_threads=1)


def test_lost_lives_and_time_limits_side_by_side_conform():
    settings = {"episodic_life": True, "max_num_frames_per_episode": 121, "noop_max": 30, "num_threads": 2}
    check_environment("ale:Breakout", num_steps=120, num_envs=3, **settings)


@pytest.mark.parametrize("frameskip", [1, 4])
def test_a_truncation_shows_the_true_last_frame_and_the_next_first_no_old_one(frameskip):
    cap = 12 * frameskip - frameskip // 2
    short = make("ale:Pong", frameskip=frameskip, max_num_frames_per_episode=cap, **SMALL)
    step_type, _, discount, frames = play(short, 26, [3])
    np.testing.assert_array_equal(step_type[:, 0], ([FIRST] + [MID] * 11 + [LAST]) * 2 + [FIRST])
    assert (discount == 1).all()
    unlimited = play(make("ale:Pong", frameskip=frameskip, **SMALL), 12, [3])
    np.testing.assert_array_equal(frames[:13], unlimited[3])
    np.testing.assert_array_equal(frames[13], frames[0])
    np.testing.assert_array_equal(frames[26], frames[0])


def test_a_lost_life_terminates_and_the_game_starts_anew():
    environment = make("ale:Breakout", num_envs=2, episodic_life=True, **SMALL)
    step_type, _, discount, frames = play(environment, 150, [0, 1])
    last = step_type == LAST
    assert last.any(0).all() and (discount[last] == 0).all() and (discount[~last] == 1).all()
    np.testing.assert_array_equal(step_type[1:][last[:-1]], FIRST)
    opening = frames[0, 0]
    assert (frames[step_type == FIRST] == opening).all(), "all five lives, as after a reset"


def test_rewards_are_the_games_own():
    _, reward, _, _ = play(make("ale:Assault", **SMALL), 30, [0])
    assert reward.dtype == np.float32 and 21 in reward


def test_seeds_decide():
    settings = {"noop_max": 30, "num_threads": 1}
    pair = play(make("ale:Pong", num_envs=2, **settings), 20, [5, 2**40 + 1])
    environment = make("ale:Pong", num_envs=2, **settings)
    environment.reset([1, 1])
    environment.send(np.zeros(2, np.int32))
    again = play(environment, 20, [5, 2**40 + 1])
    for one, other in zip(pair, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (pair[3][:, 0] != pair[3][:, 1]).any()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("Pnog", {}, ["'ale:Pnog'", "did you mean Pong?"]),
        ("ms_pacman", {}, ["did you mean MsPacman?"]),
        ("Pong", {"frame_skip": 4}, ["'frame_skip'", "did you mean frameskip?"]),
        ("Pong", {"frameskip": 0}, ["'frameskip'", ">= 1", "0"]),
        ("Pong", {"repeat_action_probability": 1.5}, ["'repeat_action_probability'", "1.5"]),
        ("Pong", {"num_envs": 0}, ["num_envs", ">= 1"]),
    ],
)
def test_mistakes_get_one_line(name, settings, words):
    with pytest.raises(UserError) as caught:
        make(f"ale:{name}", **settings)
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message, message


def test_an_action_that_would_hang_is_refused():
    pong = make("ale:Pong", num_envs=2, **SMALL)
    with pytest.raises(UserError, match="send: expected a reset"):
        pong.send(np.zeros(2, np.int32))
    pong.reset([0, 1])
    with pytest.raises(UserError, match="recv: expected a send"):
        pong.recv()
    with pytest.raises(UserError, match="slot 1: action: expected 0 <= action < 6, found 6"):
        pong.send(np.array([0, 6], np.int32))
    pong.close()


def test_a_game_in_colour_is_the_game_that_is_played():
    environment = make("ale:Breakout", num_envs=2, render_mode="rgb_array", noop_max=9)
    plain = make("ale:Breakout", num_envs=2, noop_max=9)
    assert plain.render is None
    rng = np.random.default_rng(0)
    timestep = environment.reset([3, 4])
    plain.reset([3, 4])
    for _ in range(40):
        colors = environment.render()
        assert colors.shape == (2, 210, 160, 3) and colors.dtype == np.uint8
        grey = np.asarray(
            [Image.fromarray(slot).convert("L").resize((84, 84), Image.Resampling.BOX) for slot in colors]
        )
        assert np.abs(grey.astype(float) - timestep.observation).mean() < 2
        actions = rng.integers(0, 4, 2)
        environment.send(actions)
        plain.send(actions)
        (_, timestep), (_, expected) = environment.recv(), plain.recv()
        np.testing.assert_array_equal(timestep.observation, expected.observation)
    environment.close()
    plain.close()
