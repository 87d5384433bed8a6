"""What every host environment does with the actions it gets and the flags it returns. Imports no JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import (
    ActionSpec,
    BoundedAction,
    DiscreteAction,
    StepType,
    TimeStep,
)


def make_timestep(
    first: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, observation: Any
) -> TimeStep:
    """Timesteps [N] from a simulator's flags.

    Args:
      first: [N] bool, rows that opened an episode; their reward and flags do not count.
      reward: [N], of any numeric dtype.
      terminated: [N] bool; where both flags are set the episode terminated.
      truncated: [N] bool.
      observation: passed on.
    """
    terminated, ended = terminated & ~first, (terminated | truncated) & ~first
    step_type = np.where(first, StepType.FIRST, np.where(ended, StepType.LAST, StepType.MID))
    return TimeStep(
        step_type.astype(np.int8),
        np.where(first, 0, reward).astype(np.float32),
        (~terminated).astype(np.float32),
        observation,
    )


def check_num_envs(name: str, num_envs: Any) -> None:
    """Raises a UserError unless `num_envs` is a whole number from 1."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise UserError(f"{name}: num_envs", expected="an int >= 1", found=repr(num_envs))


def check_seeds(name: str, seeds: Sequence[int], num_envs: int) -> list[int]:
    """One seed per slot, as Python ints.

    Raises:
      UserError: there are more or fewer, or one is negative.
    """
    whole = [int(seed) for seed in seeds]
    if len(whole) != num_envs or min(whole) < 0:
        raise UserError(f"{name}: seeds", expected=f"{num_envs} of them, each >= 0", found=str(whole))
    return whole


def check_actions(name: str, action: ActionSpec, actions: np.ndarray, num_envs: int) -> np.ndarray:
    """Actions [N, ...] as an array that fits the spec: a simulator may crash or hang on others.

    Raises:
      UserError: naming the slot whose action is out of range, or the shape.
    """
    actions = np.asarray(actions)
    bounded = isinstance(action, BoundedAction)
    if isinstance(action, DiscreteAction):
        shape: tuple[int, ...] = ()
    else:
        shape = action.shape if bounded else (len(action.num_values),)
    fits = actions.dtype.kind in ("f" if bounded else "iu")
    if actions.shape != (num_envs, *shape) or not fits:
        raise UserError(
            f"{name}: actions",
            expected=f"{'float32' if bounded else 'int32'}{[num_envs, *shape]}",
            found=f"{actions.dtype}{list(actions.shape)}",
        )
    if bounded:
        wrong, expected = ~(np.abs(actions) <= 1), "entries in [-1, 1]"
    else:
        wrong, expected = (actions < 0) | (actions >= action.num_values), f"0 <= action < {action.num_values}"
    if wrong.any():
        slot = int(np.nonzero(wrong)[0][0])
        raise UserError(f"{name}: slot {slot}: action", expected=expected, found=str(actions[slot]))
    return actions
