"""The static shape of a replay."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Layout:
    """A ring of rows per slot, and where in it windows lie.

    A window at row s has the transitions s..s + window_length - 1, so it reads window_length + 1 rows, and
    `context` rows before s from which stacked frames are rebuilt.

    Attributes:
      unroll_length: rows of one insert, T; divides `period` or is a multiple of it.
      window_length: transitions of a window: burn-in, trained ones and look-ahead.
      period: windows start at its multiples.
      context: rows before a window, `frame_stack - 1`.
      min_starts: least number of starts in a slot's ring.
    """

    unroll_length: int
    window_length: int
    period: int
    context: int
    min_starts: int

    @property
    def ring_length(self) -> int:
        """Rows of a slot's ring: whole unrolls and whole periods."""
        unit = math.lcm(self.unroll_length, self.period)
        return -(-self.min_starts * self.period // unit) * unit

    @property
    def starts(self) -> int:
        """Places in a slot's ring where a window may start."""
        return self.ring_length // self.period

    @property
    def overwritten_per_insert(self) -> int:
        """Most starts whose rows or context one insert overwrites."""
        return -(-(self.unroll_length + self.context) // self.period)

    @property
    def completed_per_insert(self) -> int:
        """Most windows that one insert makes whole."""
        return -(-self.unroll_length // self.period)

    def check(self) -> None:
        """Raises ValueError where the rows do not fit each other."""
        if self.unroll_length % self.period and self.period % self.unroll_length:
            raise ValueError(f"period {self.period}: expected a divisor or multiple of {self.unroll_length}")
        needed = self.window_length + self.unroll_length + self.context + 1
        if self.ring_length < needed:
            raise ValueError(f"ring of {self.ring_length} rows: expected {needed} at least")
