"""Actors' timesteps that cannot be used: found as they arrive, and what stands in for them. Numpy alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from zerocopy_envs.trees import named_leaves
from zerocopy_envs.types import EnvironmentSpec, StepType, TimeStep
from zerocopy_envs.usable import stand_in, usable
from zerocopy_seed.remote.requests import Request


class Shown(NamedTuple):
    """Scalars [n] that acting and learning see in place of what an actor said."""

    step_type: np.ndarray
    reward: np.ndarray
    discount: np.ndarray


class Unusable(NamedTuple):
    """Timesteps that could not be used: of which slots (int32 [k], ascending), how many, and in what."""

    slots: np.ndarray
    num_rows: int
    fields: str


class Screen:
    """Of `num_slots` slots; all calls come from one thread.

    Args:
      spec: of the environments.
      num_slots: S.
    """

    def __init__(self, spec: EnvironmentSpec, num_slots: int):
        self._fields = ["reward", *(path for path, _ in named_leaves(spec.observation))]
        self._follows = np.zeros(num_slots, bool)  # the last timestep could not be used
        self._num_following = 0
        self._counts = np.zeros(num_slots, np.int64)  # since they were last taken, as the next
        self._is_in = np.zeros((len(self._fields), num_slots), bool)

    def open(self, slots: np.ndarray) -> None:
        """Slots [n] begin anew, with another actor."""
        self._follows[slots] = False
        self._num_following = int(np.count_nonzero(self._follows))

    def take(self, slots: np.ndarray) -> Unusable | None:
        """What could not be used of slots [n], which ascend, since this was last asked; None if nothing."""
        counts, is_in = self._counts[slots], self._is_in[:, slots]
        if not counts.any():
            return None
        self._counts[slots], self._is_in[:, slots] = 0, False
        fields = [name for name, found in zip(self._fields, is_in, strict=True) if found.any()]
        return Unusable(slots[counts > 0], int(counts.sum()), ", ".join(fields))

    def look(self, request: Request) -> None:
        """Replaces what cannot be used in a request, and the timestep that comes after that.

        The ledger still sees the step types that the actor sent, for it must keep to the protocol; it sees
        rewards that are NaN, and what they are part of is no episode's return. The device sees a stand-in,
        and then a FIRST, so that neither row counts.
        """
        if not self._num_following and _is_usable(request):
            return
        timestep = TimeStep(request.step_type, request.reward, request.discount, request.leaves)
        is_usable = usable(timestep, np)
        follows = self._follows[request.slot]
        if is_usable.all() and not follows.any():
            return
        shown = stand_in(timestep, is_usable, np)
        begins = follows & is_usable
        self._follows[request.slot] = ~is_usable
        self._num_following = int(np.count_nonzero(self._follows))
        if not is_usable.all():
            self._count(request, is_usable)
        request.shown = Shown(
            np.where(begins, np.int8(StepType.FIRST), shown.step_type),
            np.where(begins, np.float32(0), shown.reward),
            np.where(begins, np.float32(1), shown.discount),
        )
        request.reward = np.where(is_usable, request.reward, np.float32(np.nan))
        request.leaves = shown.observation
        request.is_usual = False

    def _count(self, request: Request, is_usable: np.ndarray) -> None:
        self._counts[request.slot[~is_usable]] += 1
        nothing = np.zeros_like(request.reward)
        parts = [(request.reward, ()), *((nothing, leaf) for leaf in request.leaves)]
        for is_in, (reward, observation) in zip(self._is_in, parts, strict=True):
            one = TimeStep(request.step_type, reward, request.discount, observation)
            is_in[request.slot] |= ~usable(one, np)


def _is_usable(request: Request) -> bool:
    """Whether all of a request surely is: no square of its numbers overflows, nor their sum."""
    if not math.isfinite(np.vdot(request.reward, request.reward)):
        return False
    for leaf in request.leaves:
        kind = leaf.dtype
        if kind.kind == "f":
            if kind != np.float32:
                return False  # looked at one by one
            if not math.isfinite(np.vdot(leaf, leaf)):
                return False
    return True
