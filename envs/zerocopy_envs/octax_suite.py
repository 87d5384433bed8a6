"""Adapter of octax, CHIP-8 games (https://github.com/riiswa/octax).

octax says itself what is terminated and what is truncated. All episodes of a game start alike; what the game
draws follows from the episode's key. An observation is the frames of one step as the channels of a picture,
bool [32, 64, frame_skip].
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from octax.environments import create_environment  # pyright: ignore[reportMissingImports]

from zerocopy_envs.suite_adapter import AdaptedEnvironment, Moment, check_whole
from zerocopy_envs.types import Array, DiscreteAction, Key


def make_environment(
    name: str,
    max_num_steps_per_episodes: int = 4500,
    instruction_frequency: int = 700,
    fps: int = 60,
    frame_skip: int = 4,
) -> AdaptedEnvironment:
    """The `octax` suite's factory.

    Args:
      name: octax's name, such as `brix` or `cavern3`.
      max_num_steps_per_episodes: steps until an episode is truncated.
      instruction_frequency: instructions of the game's processor in a second.
      fps: frames in a second.
      frame_skip: frames in a step.

    Raises:
      UserError: a setting out of range.
    """
    settings = {
        "max_num_steps_per_episodes": max_num_steps_per_episodes,
        "fps": fps,
        "instruction_frequency": instruction_frequency,
        "frame_skip": frame_skip,
    }
    for setting, value in settings.items():
        minimum = fps if setting == "instruction_frequency" else 1
        check_whole(f"octax:{name}: setting {setting!r}", value, minimum)
    environment, _ = create_environment(name, **settings)

    def reset(key: Key) -> tuple[Any, Array]:
        state, frames, _ = environment.reset(key)
        return state, _picture(frames)

    def step(key: Key, state: Any, action: Array) -> Moment:
        state, frames, reward, terminated, truncated, _ = environment.step(state, action)
        return Moment(state, _picture(frames), reward, terminated, truncated)

    return AdaptedEnvironment(
        reset,
        step,
        DiscreteAction(environment.num_actions),
        max_num_steps_per_episodes,
        action_repeat=frame_skip,
        render=lambda state: _draw(state.display),
    )


def _picture(frames: Array) -> Array:
    """[frames, x, y] -> [y, x, frames]."""
    return jnp.transpose(frames, (2, 1, 0))


def _draw(display: Array) -> Array:
    """bool [64, 32] -> uint8 [256, 512, 3]."""
    large = jnp.repeat(jnp.repeat(display.T, 8, axis=0), 8, axis=1)
    return jnp.broadcast_to(jnp.where(large, jnp.uint8(255), jnp.uint8(0))[..., None], (256, 512, 3))
