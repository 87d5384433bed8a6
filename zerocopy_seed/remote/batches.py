"""What goes up to the device: buffers of a few fixed sizes, filled from the front, used again and again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.remote.tables import Places

_SMALLEST = 8
_ALIGNMENT = 64  # bytes; what JAX reads without a copy, and reads rightly


@dataclasses.dataclass(slots=True)
class Request:
    """Timesteps of some slots, n rows, that wait for their actions.

    Attributes:
      slot: int32 [n], each once.
      step_type: int8 [n].
      reward: float32 [n].
      discount: float32 [n].
      leaves: the observation's arrays [n, ...], in tree order.
      answer: called with the actions [n, ...].
      closed: int32 [n], unrolls that these timesteps close; None before they were noted.
    """

    slot: np.ndarray
    step_type: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    leaves: tuple[np.ndarray, ...]
    answer: Callable[[np.ndarray], None]
    closed: np.ndarray | None = None


class Batch:
    """Timesteps of up to `size` rows and where they belong.

    Attributes:
      size: b.
      places: int32 [4, b], the fields of `Places` as one array, since each that goes up costs microseconds.
      slot, unroll, row, closed: views of it.
      scalars: int32 [b, 3]; see `tables.timestep_of`.
      observation: a pytree of arrays [b, ...].
    """

    def __init__(self, spec: EnvironmentSpec, size: int):
        self.size = size
        self.places = _aligned_zeros((len(Places._fields), size), np.int32)
        self.slot, self.unroll, self.row, self.closed = self.places
        self.scalars = _aligned_zeros((size, 3), np.int32)
        self.observation = jax.tree.map(
            lambda leaf: _aligned_zeros((size, *leaf.shape), leaf.dtype), spec.observation
        )
        self._step_type = self.scalars[:, 0]
        self._reward, self._discount = self.scalars.view(np.float32)[:, 1:].T
        self._leaves = jax.tree.leaves(self.observation)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, Any]:
        """What goes up."""
        return self.places, self.scalars, self.observation

    def fill(self, requests: Sequence[Request]) -> None:
        """Copies requests in: the one copy that an observation gets on the host."""
        begin = 0
        for request in requests:
            end = begin + len(request.slot)
            self.slot[begin:end] = request.slot
            self._step_type[begin:end] = request.step_type
            self._reward[begin:end] = request.reward
            self._discount[begin:end] = request.discount
            for buffer, rows in zip(self._leaves, request.leaves, strict=True):
                buffer[begin:end] = rows
            begin = end


def make_batches(spec: EnvironmentSpec, most: int) -> list[Batch]:
    """Of powers of two, from the smallest to the first that holds `most` rows."""
    sizes = [_SMALLEST]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return [Batch(spec, size) for size in sizes]


def _aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)
