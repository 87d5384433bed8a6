"""Adapter of jaxtari, Atari games rewritten in JAX (https://github.com/k4ntz/Jaxtari).

Observations, rewards and frame skip are like those of the `ale` suite: one grey picture of 84 x 84 a step of
four frames, each pixel the brighter of its last two frames; rewards as the game counts them. The end of a
game is a termination, the limit of frames a truncation.

The games' pictures are no part of the package: `python -m jaxtari.install_sprites` asks for a confirmation
that one owns the games, or fetches replacements.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jaxtari  # pyright: ignore[reportMissingImports]
from jaxtari.wrappers import AtariWrapper  # pyright: ignore[reportMissingImports]

from zerocopy_envs.errors import UserError
from zerocopy_envs.suite_adapter import AdaptedEnvironment, Moment, check_whole
from zerocopy_envs.types import Array, DiscreteAction, Key

_FRAMES_PER_STEP = 4
_GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as ALE has it


def make_environment(
    name: str,
    repeat_action_probability: float = 0.25,
    noop_max: int = 30,
    max_num_frames_per_episode: int = 108_000,
    picture_size: int = 84,
) -> AdaptedEnvironment:
    """The `jaxtari` suite's factory.

    Args:
      name: jaxtari's name, such as `pong`.
      repeat_action_probability: of a frame's action being the last frame's.
      noop_max: the most frames without an action before an episode.
      max_num_frames_per_episode: frames until an episode is truncated.
      picture_size: height and width of an observation.

    Raises:
      UserError: the games' pictures are not installed, or a setting out of range.
    """
    full_name = f"jaxtari:{name}"
    if not jaxtari.ownership_or_alt_markers_present() or jaxtari.sprite_update_needed():
        raise UserError(
            f"environment {full_name!r}",
            expected="the pictures of its games to be installed, in their newest version",
            remedy="run `python -m jaxtari.install_sprites`, which asks about their licence",
        )
    check_whole(f"{full_name}: setting 'noop_max'", noop_max, 0)
    check_whole(f"{full_name}: setting 'max_num_frames_per_episode'", max_num_frames_per_episode, 1)
    check_whole(f"{full_name}: setting 'picture_size'", picture_size, 1)
    environment: Any = jaxtari.make(name)
    # The wrapper counts no-operation frames towards its own limit, so the limit is counted here.
    atari = AtariWrapper(
        environment, sticky_actions=repeat_action_probability, episodic_life=False, noop_max=noop_max
    )
    max_steps = -(-max_num_frames_per_episode // _FRAMES_PER_STEP)

    def observe(state: Any, before: Any) -> Array:
        frames = jnp.maximum(environment.render(state.env_state), environment.render(before.env_state))
        grey = jnp.dot(frames.astype(jnp.float32), jnp.float32(_GREY))
        small = jax.image.resize(grey, (picture_size, picture_size), "linear")
        return jnp.clip(jnp.round(small), 0, 255).astype(jnp.uint8)

    def reset(key: Key) -> tuple[Any, Array]:
        _, state = atari.reset(key)
        return (state, jnp.int32(0)), observe(state, state)

    def step(key: Key, state: Any, action: Array) -> Moment:
        inner, time = state

        def frame(carry: Any, _: None) -> tuple[Any, None]:
            state, before, earned, over = carry
            _, after, reward, ended, _, _ = atari.step(state, action)
            # What follows the end of the game within the step is none of it.
            chosen = jax.tree.map(lambda old, new: jnp.where(over, old, new), (state, before), (after, state))
            earned = earned + jnp.where(over, 0.0, jnp.float32(reward))
            return (*chosen, earned, over | ended), None

        start = (inner, inner, jnp.float32(0), jnp.bool_(False))
        (inner, before, earned, over), _ = jax.lax.scan(frame, start, length=_FRAMES_PER_STEP)
        return Moment((inner, time + 1), observe(inner, before), earned, over, time + 1 >= max_steps)

    num_actions = int(environment.action_space().n)
    return AdaptedEnvironment(
        reset,
        step,
        DiscreteAction(num_actions),
        max_steps,
        action_repeat=_FRAMES_PER_STEP,
        render=lambda state: environment.render(state[0].env_state),
    )
