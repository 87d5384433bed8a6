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


class Screen:
    """Of `num_slots` slots; all calls come from one thread.

    Args:
      spec: of the environments.
      num_slots: S.

    Attributes:
      field: of the latest of them, what was not finite.
      counts: int64 [S], timesteps that could not be used, ever; to be read from any thread.
    """

    def __init__(self, spec: EnvironmentSpec, num_slots: int):
        self._paths = [path for path, _ in named_leaves(spec.observation)]
        self.field = ""
        self._follows = np.zeros(num_slots, bool)  # the last timestep could not be used
        self._num_following = 0
        self.counts = np.zeros(num_slots, np.int64)

    def open(self, slots: np.ndarray) -> None:
        """Slots [n] begin anew, with another actor."""
        self._follows[slots] = False
        self._num_following = int(np.count_nonzero(self._follows))

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
        self.counts[request.slot[~is_usable]] += 1
        if not is_usable.all():
            self.field = self._field(request)
        request.shown = Shown(
            np.where(begins, np.int8(StepType.FIRST), shown.step_type),
            np.where(begins, np.float32(0), shown.reward),
            np.where(begins, np.float32(1), shown.discount),
        )
        request.reward = np.where(is_usable, request.reward, np.float32(np.nan))
        request.leaves = shown.observation
        request.is_usual = False

    def _field(self, request: Request) -> str:
        if not usable(TimeStep(request.step_type, request.reward, request.discount, ()), np).all():
            return "reward"
        named = zip(self._paths, request.leaves, strict=True)
        alone = request.reward * 0
        return next(
            path
            for path, leaf in named
            if not usable(TimeStep(request.step_type, alone, request.discount, leaf), np).all()
        )


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
