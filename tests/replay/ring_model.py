"""What a replay should hold, said slowly: lists of all rows ever written."""

from __future__ import annotations

import numpy as np

from zerocopy_seed.replay_layout import Layout


class RingModel:
    """All rows that each slot was ever given, and the masses of its windows by the row that they start at."""

    def __init__(self, layout: Layout, num_slots: int):
        self.layout = layout
        self.times: list[list[int]] = [[] for _ in range(num_slots)]
        self.pieces: list[list[int]] = [[] for _ in range(num_slots)]  # grows with every gap
        self.begins_with_first: list[list[bool]] = [[] for _ in range(num_slots)]  # by piece
        self.completed = [0] * num_slots
        self.mass: list[dict[int, float]] = [{} for _ in range(num_slots)]

    def insert(self, slot: int, begin: int, continues: bool, first: bool, initial_mass) -> None:
        if not continues or not self.times[slot]:
            self.begins_with_first[slot].append(first and not continues)
        piece = len(self.begins_with_first[slot]) - 1
        self.times[slot] += range(begin, begin + self.layout.unroll_length)
        self.pieces[slot] += [piece] * self.layout.unroll_length
        num_rows, period = len(self.times[slot]), self.layout.period
        oldest = max(0, num_rows - self.layout.ring_length) // period * period
        present = [row for row in range(oldest, num_rows, period) if self.is_there(slot, row)]
        new = [row for row in present if row not in self.mass[slot]]
        self.completed[slot] += len(new)
        self.mass[slot] = {
            row: initial_mass(self.times[slot][row]) if row in new else self.mass[slot][row]
            for row in present
        }

    def is_there(self, slot: int, row: int) -> bool:
        """Whether the window at a row is whole, in one piece, and still in the ring with its context."""
        layout, pieces = self.layout, self.pieces[slot]
        last, oldest = row + layout.window_length, row - layout.context
        if last >= len(pieces) or oldest < len(pieces) - layout.ring_length:
            return False
        if pieces[row] != pieces[last]:
            return False
        in_context = range(oldest, row)
        return self.begins_with_first[slot][pieces[row]] or all(
            i >= 0 and pieces[i] == pieces[row] for i in in_context
        )

    def row_of(self, slot: int, start: int) -> int:
        """The newest row that was written to a start of the ring."""
        ring, place = self.layout.ring_length, start * self.layout.period
        return (len(self.times[slot]) - 1 - place) // ring * ring + place

    def leaves(self) -> np.ndarray:
        """Masses as they lie in the tree, [slots, starts] float32."""
        found = np.zeros((len(self.times), self.layout.starts), np.float32)
        for slot, masses in enumerate(self.mass):
            for row, mass in masses.items():
                found[slot, row // self.layout.period % self.layout.starts] = mass
        return found
