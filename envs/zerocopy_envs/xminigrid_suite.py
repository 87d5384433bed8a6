"""Adapter of XLand-MiniGrid's MiniGrid tasks (https://github.com/corl-team/xland-minigrid).

xminigrid counts reaching the goal as the end with discount 0 and `max_steps` as one with discount 1, and so
does the adapter. An observation is what the agent sees, tile and colour of every cell as bool one-hot
channels, [view, view, 13 + 12].

The XLand tasks are not here: their rules and goals come from benchmark files that are downloaded, and without
one they reward nothing.
"""

from __future__ import annotations

from typing import Any

import xminigrid  # pyright: ignore[reportMissingImports]
from xminigrid.core.constants import NUM_COLORS, NUM_TILES  # pyright: ignore[reportMissingImports]

from zerocopy_envs.errors import UserError
from zerocopy_envs.suite_adapter import AdaptedEnvironment, Moment, check_whole, one_hot_channels
from zerocopy_envs.types import Array, DiscreteAction, Key


def make_environment(name: str, max_steps: int | None = None, view_size: int = 7) -> AdaptedEnvironment:
    """The `xminigrid` suite's factory.

    Args:
      name: xminigrid's name, such as `MiniGrid-DoorKey-8x8`.
      max_steps: steps until an episode is truncated; None for as many as the task has.
      view_size: cells that the agent sees to each side, an odd number of at least 3.

    Raises:
      UserError: a setting out of range.
    """
    full_name = f"xminigrid:{name}"
    environment, params = xminigrid.make(name)
    if max_steps is not None:
        check_whole(f"{full_name}: setting 'max_steps'", max_steps, 1)
        params = params.replace(max_steps=max_steps)
    check_whole(f"{full_name}: setting 'view_size'", view_size, 3)
    if view_size % 2 == 0:
        raise UserError(f"{full_name}: setting 'view_size'", expected="an odd number", found=str(view_size))
    params = params.replace(view_size=view_size)

    def reset(key: Key) -> tuple[Any, Array]:
        timestep = environment.reset(params, key)
        return timestep, one_hot_channels(timestep.observation, (NUM_TILES, NUM_COLORS))

    def step(key: Key, timestep: Any, action: Array) -> Moment:
        timestep = environment.step(params, timestep, action)
        observation = one_hot_channels(timestep.observation, (NUM_TILES, NUM_COLORS))
        return Moment(timestep, observation, timestep.reward, timestep.discount == 0, timestep.last())

    return AdaptedEnvironment(reset, step, DiscreteAction(environment.num_actions(params)), params.max_steps)
