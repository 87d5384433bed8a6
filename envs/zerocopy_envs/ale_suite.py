"""Atari through ALE's own vector environment, whose C++ threads step all games at once. Imports no JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ale_py import AtariVectorEnv, roms
from gymnasium.vector import AutoresetMode

from zerocopy_envs.ale_games import num_actions
from zerocopy_envs.errors import UserError
from zerocopy_envs.host_steps import check_actions, check_num_envs, check_seeds, make_timestep
from zerocopy_envs.types import ArraySpec, DiscreteAction, EnvironmentSpec, TimeStep

_LARGEST_SEED = 2**31 - 1


class AleEnvironment:
    """`num_envs` copies of an Atari game: one grey frame a step (84 x 84), rewards as the game counts them.

    The emulators start at the first `reset`, so that a listing does not wait for them. At a truncation the
    observation is the last frame; at the end of a game it is ALE's, which may be some frames old.

    Args:
      game: such as `Pong`.
      num_envs: how many.
      settings: see `make_environment`.
    """

    def __init__(
        self,
        game: str,
        num_envs: int,
        *,
        frameskip: int,
        repeat_action_probability: float,
        full_action_space: bool,
        noop_max: int,
        episodic_life: bool,
        max_num_frames_per_episode: int,
        num_threads: int,
        picture_size: int,
        render_mode: str,
    ):
        self._name = f"ale:{game}"
        self._rom = {rom.title().replace("_", ""): rom for rom in roms.get_all_rom_ids()}[game]
        action = DiscreteAction(num_actions(game, full_action_space))
        frame = ArraySpec((picture_size, picture_size), np.uint8, 0, 255)
        self._max_steps = -(-max_num_frames_per_episode // frameskip)
        self.spec = EnvironmentSpec(frame, action, self._max_steps, frameskip)
        self.num_envs = num_envs
        self._settings = {
            "frameskip": frameskip,
            "repeat_action_probability": repeat_action_probability,
            "full_action_space": full_action_space,
            "noop_max": noop_max,
            "episodic_life": episodic_life,
            "num_threads": num_threads,
            "img_height": picture_size,
            "img_width": picture_size,
            # ALE's own truncation shows a picture of earlier frames, so it must never come first.
            "max_num_frames_per_episode": (self._max_steps + 2) * frameskip,
            "maxpool": frameskip > 1,
        }
        self._emulators: AtariVectorEnv | None = None
        # Frames in colour come from second emulators, which get the same seeds and actions.
        self._twins: AtariVectorEnv | None = None
        self.render = self._render if render_mode else None
        self._pending = False

    def reset(self, seeds: Sequence[int]) -> TimeStep:
        """FIRST timesteps [N]; all that follows in slot i comes from `seeds[i]` and its actions."""
        whole = check_seeds(self._name, seeds, self.num_envs)
        emulators = self._emulators = self._emulators or self._start()
        if self._pending:
            emulators.recv()
            if self._twins is not None:
                self._twins.recv()
            self._pending = False
        own_seeds = np.array([seed % _LARGEST_SEED for seed in whole])
        frames, _ = emulators.reset(seed=own_seeds)
        if self.render is not None:
            self._twins = self._twins or self._start(img_height=210, img_width=160, grayscale=False)
            self._colors, _ = self._twins.reset(seed=own_seeds)
        self._age = np.zeros(self.num_envs, np.int64)
        self._ended = self._truncated = np.zeros(self.num_envs, bool)
        nothing = np.zeros(self.num_envs)
        return make_timestep(np.ones(self.num_envs, bool), nothing, self._ended, self._ended, frames[:, 0])

    def send(self, actions: np.ndarray) -> None:
        """Starts a step of every slot in ALE's threads."""
        if self._emulators is None or self._pending:
            raise UserError(f"{self._name}: send", expected="a reset or recv before it")
        actions = check_actions(self._name, self.spec.action, actions, self.num_envs)
        self._emulators.send(actions.astype(np.int32))
        if self._twins is not None:
            self._twins.send(actions.astype(np.int32))
        self._pending = True

    def recv(self) -> tuple[np.ndarray, TimeStep]:
        """All slots and their timesteps [N], once every slot has stepped."""
        if self._emulators is None or not self._pending:
            raise UserError(f"{self._name}: recv", expected="a send before it")
        frames, reward, terminated, _, information = self._emulators.recv()
        self._pending = False
        first = self._ended
        if self._twins is not None:
            self._colors = self._twins.recv()[0]
            if self._truncated.any():
                self._colors, _ = self._twins.reset(options={"reset_mask": self._truncated})
        if self._truncated.any():
            # ALE does not know of our truncation and has stepped these slots once more.
            frames, information = self._emulators.reset(options={"reset_mask": self._truncated})
        self._age = np.where(first, 0, self._age + 1)
        terminated = terminated & ~first
        self._truncated = (self._age >= self._max_steps) & ~terminated
        self._ended = terminated | self._truncated
        timestep = make_timestep(first, reward, terminated, self._truncated, frames[:, 0])
        return np.array(information["env_id"]), timestep

    def close(self) -> None:
        """Stops ALE's threads."""
        self._emulators, self._twins, self._pending = None, None, False

    def _render(self) -> np.ndarray:
        """The screens in colour, uint8 [N, 210, 160, 3]."""
        if self._twins is None:
            raise UserError(f"{self._name}: render", expected="a reset before it")
        return np.array(self._colors[:, 0])

    def _start(self, **screen: Any) -> AtariVectorEnv:
        emulators = AtariVectorEnv(
            self._rom,
            self.num_envs,
            stack_num=1,
            reward_clipping=False,
            use_fire_reset=False,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            **{**self._settings, **screen},
        )
        expected = (AutoresetMode.NEXT_STEP, self.spec.action)
        found = (
            emulators.metadata.get("autoreset_mode"),
            DiscreteAction(int(emulators.single_action_space.n)),
        )
        if found != expected:
            raise UserError(f"environment {self._name!r}", expected=str(expected), found=str(found))
        return emulators


def make_environment(
    name: str,
    *,
    num_envs: int = 1,
    frameskip: int = 4,
    repeat_action_probability: float = 0.25,
    full_action_space: bool = False,
    noop_max: int = 0,
    episodic_life: bool = False,
    max_num_frames_per_episode: int = 108_000,
    num_threads: int = 0,
    picture_size: int = 84,
    render_mode: str = "",
) -> AleEnvironment:
    """The `ale` suite's factory. The defaults are those of `ALE/...-v5` (arXiv:1709.06009).

    Args:
      name: the game, such as `Pong`.
      num_envs: copies.
      frameskip: frames that an action lasts; the picture is the maximum of the last two.
      repeat_action_probability: of a frame that keeps the action before (sticky actions).
      full_action_space: all of the joystick's actions (18, or 9 without its button), not those in use only.
      noop_max: an episode opens with fewer than so many frames without action, drawn from the slot's seed.
      episodic_life: a lost life terminates the episode, and the game starts anew.
      max_num_frames_per_episode: the episode is truncated once so many frames have passed, counted in whole
        steps after the opening: 108,000 are 27,000 steps at a frameskip of 4.
      num_threads: of ALE; 0 for one per core, at most one per copy.
      picture_size: rows, and columns, to which the screen is scaled.
      render_mode: "rgb_array" for environments that render, at twice the work.

    Raises:
      UserError: a value out of range.
    """
    full_name = f"ale:{name}"
    check_num_envs(full_name, num_envs)
    for setting, value, minimum in (
        ("frameskip", frameskip, 1),
        ("noop_max", noop_max, 0),
        ("max_num_frames_per_episode", max_num_frames_per_episode, 1),
        ("num_threads", num_threads, 0),
        ("picture_size", picture_size, 1),
    ):
        if value < minimum:
            raise UserError(f"{full_name}: setting {setting!r}", expected=f">= {minimum}", found=str(value))
    if render_mode not in ("", "rgb_array"):
        raise UserError(
            f"{full_name}: setting 'render_mode'",
            expected="'rgb_array', or '' for none",
            found=repr(render_mode),
        )
    if not 0 <= repeat_action_probability <= 1:
        raise UserError(
            f"{full_name}: setting 'repeat_action_probability'",
            expected="from 0 to 1",
            found=str(repeat_action_probability),
        )
    return AleEnvironment(
        name,
        num_envs,
        frameskip=frameskip,
        repeat_action_probability=float(repeat_action_probability),
        full_action_space=full_action_space,
        noop_max=noop_max,
        episodic_life=episodic_life,
        max_num_frames_per_episode=max_num_frames_per_episode,
        num_threads=num_threads,
        picture_size=picture_size,
        render_mode=render_mode,
    )
