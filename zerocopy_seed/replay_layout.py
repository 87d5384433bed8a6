"""The static shape of a replay: how many rows it keeps, and where in them windows lie. Imports no JAX."""

from __future__ import annotations

import dataclasses
import math

from zerocopy_seed.config import R2D2Config


@dataclasses.dataclass(frozen=True)
class Layout:
    """A ring of rows per slot, and where in it windows lie.

    A window at row s has the transitions s..s + window_length - 1, so it reads window_length + 1 rows, and
    `context` rows before s from which stacked frames are rebuilt.

    Attributes:
      unroll_length: rows of one insert, T.
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
        return -(-self.min_starts * self.period // self._unit) * self._unit

    @property
    def least_ring_length(self) -> int:
        """Rows that a ring needs: a window, the row after it, its context, and an unroll, since one is
        written over the oldest rows at once.
        """
        return self.window_length + 1 + self.context + self.unroll_length

    @property
    def starts(self) -> int:
        """Places in a slot's ring where a window may start."""
        return self.ring_length // self.period

    def starts_within(self, num_rows: int) -> int:
        """The most `min_starts` whose ring has at most so many rows."""
        return num_rows // self._unit * self._unit // self.period

    @property
    def period_fits(self) -> bool:
        """Whether `period` is a multiple or a divisor of `unroll_length`."""
        return self.stores_core or self.unroll_length % self.period == 0

    @property
    def stores_core(self) -> bool:
        """Whether an unroll begins at every start, so that the core's state there is known."""
        return self.period % self.unroll_length == 0

    @property
    def overwritten_per_insert(self) -> int:
        """Most starts whose rows or context one insert overwrites."""
        return -(-(self.unroll_length + self.context) // self.period)

    @property
    def completed_per_insert(self) -> int:
        """Most windows that one insert makes whole."""
        return -(-self.unroll_length // self.period)

    @property
    def _unit(self) -> int:
        return math.lcm(self.unroll_length, self.period)


def make_layout(agent: R2D2Config, *, num_slots: int, frame_stack: int) -> Layout:
    """The replay of `agent`: its capacity is shared by `num_slots` slots, of all devices together."""
    return Layout(
        unroll_length=agent.unroll_length,
        window_length=agent.burn_in + agent.sequence_length + agent.look_ahead,
        period=agent.period,
        context=frame_stack - 1,
        min_starts=-(-agent.replay_capacity // num_slots),
    )
