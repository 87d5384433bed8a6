"""Adapter of navix (https://github.com/epignatelli/navix).

navix tells its ends apart itself: TERMINATION and TRUNCATION, of which the first wins. Its own `step` resets
on the step after an end, which is `wrappers.Vectorized`'s work, so the half of it that does not is used.

Observations are navix's, by the names of its functions: pictures as uint8; symbols as bool one-hot channels
of entity, colour and state (a direction, or how far a door is open), [H, W, entities + 6 + 4].
"""

from __future__ import annotations

from typing import Any

import navix  # pyright: ignore[reportMissingImports]
from navix import observations  # pyright: ignore[reportMissingImports]
from navix.entities import EntityIds  # pyright: ignore[reportMissingImports]

from zerocopy_envs.errors import UserError, known
from zerocopy_envs.suite_adapter import AdaptedEnvironment, Moment, check_whole, one_hot_channels
from zerocopy_envs.types import Array, DiscreteAction, Key

OBSERVATIONS = ("symbolic", "symbolic_first_person", "rgb", "rgb_first_person")

_NUM_COLOURS, _NUM_STATES = 6, 4
_NUM_ENTITIES = 1 + max(int(tag) for name, tag in vars(EntityIds).items() if name.isupper())


def make_environment(
    name: str, max_steps: int | None = None, observation: str = "symbolic"
) -> AdaptedEnvironment:
    """The `navix` suite's factory.

    Args:
      name: navix's name, such as `Navix-DoorKey-8x8-v0`.
      max_steps: steps until an episode is truncated; None for as many as navix allows by itself.
      observation: one of `OBSERVATIONS`.

    Raises:
      UserError: a name that the installed navix has not, or a setting out of range.
    """
    full_name = f"navix:{name}"
    if name not in navix.registry():
        raise UserError(f"environment {full_name!r}", expected="one that the installed navix has")
    if observation not in OBSERVATIONS:
        raise UserError(
            f"{full_name}: setting 'observation'", found=repr(observation), remedy=known(OBSERVATIONS)
        )
    if max_steps is not None:
        check_whole(f"{full_name}: setting 'max_steps'", max_steps, 1)
    limit = {} if max_steps is None else {"max_steps": max_steps}
    environment: Any = navix.make(name, observation_fn=getattr(observations, observation), **limit)
    symbolic = observation.startswith("symbolic")

    def observe(timestep: Any) -> Array:
        if symbolic:
            return one_hot_channels(timestep.observation, (_NUM_ENTITIES, _NUM_COLOURS, _NUM_STATES))
        return timestep.observation

    def reset(key: Key) -> tuple[Any, Array]:
        timestep = environment.reset(key)
        return timestep, observe(timestep)

    def step(key: Key, timestep: Any, action: Array) -> Moment:
        timestep = environment._step(timestep, action)
        return Moment(
            timestep, observe(timestep), timestep.reward, timestep.is_termination(), timestep.is_truncation()
        )

    return AdaptedEnvironment(reset, step, DiscreteAction(len(environment.action_set)), environment.max_steps)
