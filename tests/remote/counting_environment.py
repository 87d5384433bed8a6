"""Host environments for tests, which count their steps."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from zerocopy_envs.host_steps import make_timestep
from zerocopy_envs.types import ArraySpec, DiscreteAction, EnvironmentSpec, TimeStep


class Counting:
    """The observation is (seed, steps since the reset); episodes last four steps.

    Args:
      num_envs: how many.
      fail_after: steps after which a step raises; 0 for never.
      step_s: how long a step takes.
      batch: how many slots `recv` returns at most, 0 for all: the slots that have waited longest.
      num_pixels: length of another part of the observation, zeros; 0 for none.
      lie: return what the spec does not say.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        fail_after: int = 0,
        step_s: float = 0.0,
        batch: int = 0,
        num_pixels: int = 0,
        lie: bool = False,
    ):
        self.num_envs = num_envs
        count = ArraySpec((2,), np.float32)
        pixels = {"pixels": ArraySpec((num_pixels,), np.uint8)} if num_pixels else {}
        self.spec = EnvironmentSpec({"count": count, **pixels}, DiscreteAction(3), 4)
        self._fail_after, self._step_s, self._batch, self._lie = fail_after, step_s, batch or num_envs, lie
        self._num_sends = 0
        self.is_closed = False

    def reset(self, seeds: Sequence[int]) -> TimeStep:
        self._seeds, self._age = np.array(seeds, np.float32), np.zeros(self.num_envs, np.int64)
        self._pending: list[int] = []
        self._slots = np.arange(self.num_envs)
        return self._timestep(self._slots)

    def send(self, actions: np.ndarray) -> None:
        assert actions.shape == (len(self._slots),) and actions.dtype == np.int32
        self._num_sends += 1
        if self._num_sends == self._fail_after:
            raise RuntimeError("the simulator\nbroke")
        time.sleep(self._step_s)
        self._age[self._slots] = (self._age[self._slots] + 1) % 5
        self._pending += self._slots.tolist()

    def recv(self) -> tuple[np.ndarray, TimeStep]:
        self._slots, self._pending = np.array(self._pending[: self._batch]), self._pending[self._batch :]
        return self._slots, self._timestep(self._slots)

    def close(self) -> None:
        self.is_closed = True

    def _timestep(self, slots: np.ndarray) -> TimeStep:
        age = self._age[slots]
        count = np.stack([self._seeds[slots], age.astype(np.float32)], axis=1)
        observation: dict[str, np.ndarray] = {"count": count.astype(np.float64) if self._lie else count}
        if "pixels" in self.spec.observation:
            observation["pixels"] = np.zeros((len(slots), *self.spec.observation["pixels"].shape), np.uint8)
        return make_timestep(age == 0, age, age == 4, age == 4, observation)


def spec_alone() -> EnvironmentSpec:
    """For a simulator that owns its loop."""
    return Counting().spec


Another = Counting  # by another name
