"""What the engine is asked to act upon. Numpy alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from zerocopy_envs.types import StepType


@dataclasses.dataclass(slots=True)
class Request:
    """Timesteps of some slots, n rows, that wait for their actions.

    Attributes:
      slot: int32 [n], each once.
      where: the same as a slice where they follow each other, since reading those costs a tenth; else `slot`.
      step_type: int8 [n].
      reward: float32 [n].
      discount: float32 [n].
      leaves: the observation's arrays [n, ...], in tree order.
      is_usual: whether all of them are MID and of discount 1, as in nearly every message.
      answer: called with the actions [n, ...].
      closed: int32 [n], unrolls that these timesteps close; None before they were noted.
      shown: step types, rewards and discounts [n] that the device sees in their place, where some timesteps
        cannot be used (`screening`).
    """

    slot: np.ndarray
    where: slice | np.ndarray
    step_type: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    leaves: tuple[np.ndarray, ...]
    is_usual: bool
    answer: Callable[[np.ndarray], None]
    closed: np.ndarray | None = None
    shown: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None


def where_of(slot: np.ndarray) -> slice | np.ndarray:
    """int32 [n] as a slice if they follow each other, else as they are."""
    first, last = int(slot[0]), int(slot[-1])
    follow = last - first == len(slot) - 1 and bool((np.diff(slot) == 1).all())
    return slice(first, last + 1) if follow else slot


def make_request(
    slot: np.ndarray,
    step_type: np.ndarray,
    reward: np.ndarray,
    discount: np.ndarray,
    leaves: tuple[np.ndarray, ...],
    answer: Callable[[np.ndarray], None],
) -> Request:
    """A request of which only the arrays are known."""
    is_usual = bool((step_type == StepType.MID).all() and (discount == 1).all())
    return Request(slot, where_of(slot), step_type, reward, discount, leaves, is_usual, answer)
