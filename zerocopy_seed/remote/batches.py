"""What goes up to the device: buffers of a few fixed sizes, filled from the front, used again and again."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from zerocopy_envs.types import EnvironmentSpec, StepType
from zerocopy_seed.remote.requests import Request
from zerocopy_seed.remote.tables import NUM_WORDS, Places

_SMALLEST_BITS = 3
_MID = int(StepType.MID)
_ALIGNMENT = 64  # bytes; what JAX reads without a copy, and reads rightly


class Batch:
    """Timesteps of up to `size` rows and where they belong.

    Attributes:
      size: b.
      words: int32 [7, b], the fields of `Places` and of `tables.timestep_of` as one array, since each
        that goes up costs microseconds.
      places, slot, unroll, row, closed: views of it.
      observation: a pytree of arrays [b, ...].
      leaves: of it.
    """

    def __init__(self, spec: EnvironmentSpec, size: int):
        self.size = size
        self.words = _aligned_zeros((NUM_WORDS, size), np.int32)
        self.places = self.words[: len(Places._fields)]
        self.slot, self.unroll, self.row, self.closed = self.places
        self.observation = jax.tree.map(
            lambda leaf: _aligned_zeros((size, *leaf.shape), leaf.dtype), spec.observation
        )
        self._step_type = self.words[-3]
        self._reward, self._discount = self.words.view(np.float32)[-2:]
        self.leaves = tuple(jax.tree.leaves(self.observation))
        self._num_rows = -1

    def pad(self, num_rows: int, nobody: int, nowhere: int) -> None:
        """Rows from `num_rows` on belong to slot `nobody` and unroll `nowhere`."""
        if num_rows != self._num_rows:
            self._num_rows = num_rows
            self.slot[num_rows:] = nobody
            self.unroll[num_rows:] = self.closed[num_rows:] = nowhere
            self.row[num_rows:] = 0

    def fill(self, request: Request, begin: int) -> None:
        """Copies a request in, as rows from `begin` on: the one copy that an observation gets on the host."""
        end = begin + len(request.slot)
        if request.is_usual:
            self._step_type[begin:end] = _MID
            self._reward[begin:end] = request.reward
            self._discount[begin:end] = 1.0
        else:
            step_type, reward, discount = request.shown or (
                request.step_type,
                request.reward,
                request.discount,
            )
            self._step_type[begin:end] = step_type
            self._reward[begin:end] = reward
            self._discount[begin:end] = discount
        for buffer, rows in zip(self.leaves, request.leaves, strict=True):
            buffer[begin:end] = rows


def make_batches(spec: EnvironmentSpec, most: int) -> list[Batch]:
    """Of powers of two, from the smallest to the first that holds `most` rows."""
    sizes = [1 << _SMALLEST_BITS]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return [Batch(spec, size) for size in sizes]


def batch_for(batches: list[Batch], num_rows: int) -> Batch:
    """The smallest of `make_batches`'s that holds so many rows."""
    return batches[max(0, (num_rows - 1).bit_length() - _SMALLEST_BITS)]


def _aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)
