"""Who has which slot, and how far each unroll has come: the host's half of the tables. Numpy alone.

A slot is one environment's place. Its unroll in the making lies in the device's tables under a number, taken
from the free ones at row 0 and given back when the learner has taken the unroll.
"""

from __future__ import annotations

import collections
import math
from typing import NamedTuple

import numpy as np

from zerocopy_envs.types import StepType
from zerocopy_seed.remote.requests import Request

# Comparing an array with a member of an enum takes several times as long.
_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)
# What the next message about a slot must be.
_ANY, _IS_FIRST, _NONE = 0, 1, 2


class Taken(NamedTuple):
    """Finished unrolls, in the order of their slots; arrays [n].

    Attributes:
      unroll: int32, their places in the tables, to be given back.
      slot: int32.
      continues: bool, follows the slot's previous unroll without a gap.
      lag: int, updates since the oldest row was acted.
    """

    unroll: np.ndarray
    slot: np.ndarray
    continues: np.ndarray
    lag: np.ndarray


class Episodes(NamedTuple):
    """Those that ended in a while, in the order in which they did: `slot` int32, `returns` float64, `lengths`
    int64, [n] each.
    """

    slot: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray


def num_unrolls(num_slots: int, max_lag: float) -> int:
    """U, the unrolls that the tables have room for.

    Besides those in the making: up to `num_slots` that the learner waits to have, and as many again, so that
    messages of any size are admitted while it waits.
    """
    return num_slots * (3 if max_lag == math.inf else max(3, int(max_lag) + 2))


class Slots:
    """The ledger of `num_slots` slots.

    Args:
      num_slots: S.
      length: T, rows of an unroll.
      max_lag: most unrolls of a slot that wait for the learner while it goes on acting; inf for any number.
      distinct: whether no slot may be twice among the unrolls that are taken at once.
      first_incarnation: of every slot; another one after a resume, so that nothing is played again.
    """

    def __init__(
        self, num_slots: int, length: int, *, max_lag: float, distinct: bool, first_incarnation: int = 0
    ):
        self.num_slots, self.length, self._max_lag, self._distinct = num_slots, length, max_lag, distinct
        self.num_unrolls = num_unrolls(num_slots, max_lag)
        self._free = collections.deque(range(self.num_unrolls))
        self._finished: collections.deque[int] = collections.deque()
        self.version = 0
        self.num_dropped = 0

        self.is_live = np.zeros(num_slots, bool)
        self.incarnation = np.full(num_slots, first_incarnation - 1, np.int64)
        # Their bytes, since a few of those are compared and set in a fraction of the time that arrays take.
        self._awaited_bytes, self._at_end_bytes = bytearray(num_slots), bytearray(num_slots)
        self._has_ended_bytes = bytearray(num_slots)
        self._zeros, self._nones = bytes(num_slots), bytes([_NONE]) * num_slots

        self._awaited = np.frombuffer(self._awaited_bytes, np.int8)
        self._awaited[:] = _IS_FIRST
        self._is_held = np.zeros(num_slots, bool)
        self._has_ended = np.frombuffer(self._has_ended_bytes, bool)  # the next timestep must be FIRST
        self._has_ended[:] = True
        self._places = np.empty((4, num_slots), np.int32)
        _, self._unroll, self._row, _ = self._places
        self._places[0], self._unroll[:], self._row[:], self._places[3] = (
            np.arange(num_slots),
            -1,
            0,
            self.num_unrolls,
        )
        self._is_at_end = np.frombuffer(self._at_end_bytes, bool)  # the next opens an unroll, or closes one
        self._is_at_end[:] = True
        self._follows = np.zeros(num_slots, bool)
        self._num_waiting = np.zeros(num_slots, np.int64)  # finished and not yet learned from
        self._is_outside = np.zeros(num_slots, bool)  # an update is under way that has no unroll of it

        self._nowhere = np.full(num_slots, self.num_unrolls, np.int32)
        self._nowhere.flags.writeable = False

        self._slot_of = np.zeros(self.num_unrolls, np.int32)
        self._continues = np.zeros(self.num_unrolls, bool)
        self._version_of = np.zeros(self.num_unrolls, np.int64)

        self._return = np.zeros(num_slots, np.float64)
        self._steps = np.zeros(num_slots, np.int64)
        self._ended: list[Episodes] = []

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound on the policy's lag."""
        return self._max_lag != math.inf

    @property
    def num_free(self) -> int:
        """Slots that nobody has."""
        return self.num_slots - int(self.is_live.sum())

    def open(self, count: int) -> np.ndarray:
        """Takes `count` free slots, the lowest ones: int32 [count]. At most `num_free`."""
        slots = np.flatnonzero(~self.is_live)[:count].astype(np.int32)
        if len(slots) < count:
            raise ValueError(f"{count} slots: expected at most {len(slots)}")
        self.is_live[slots] = True
        self.incarnation[slots] += 1
        self._has_ended[slots] = self._is_at_end[slots] = True
        self._awaited[slots] = _IS_FIRST
        self._is_held[slots] = self._follows[slots] = False
        return slots

    def close(self, slots: np.ndarray) -> None:
        """Frees slots; their unfinished unrolls are dropped, finished ones stay for the learner."""
        begun = slots[self._unroll[slots] >= 0]
        self.num_dropped += int(self._row[begun].sum())
        self._free.extend(self._unroll[begun].tolist())
        self._unroll[slots], self._row[slots] = -1, 0
        self.is_live[slots] = False

    def check(self, request: Request) -> tuple[str, int] | None:
        """What is wrong with a request: what was expected, and of which slot; or None."""
        where = request.where
        if type(where) is slice and self._are_zero(self._awaited_bytes, where):
            return None
        awaited = self._awaited[where]
        busy = awaited == _NONE
        if np.count_nonzero(busy):
            return "no message before the answer to the last one", int(request.slot[busy][0])
        wrong = (awaited == _IS_FIRST) & (request.step_type != _FIRST)
        if np.count_nonzero(wrong):
            return "FIRST (0) at the start and after a LAST", int(request.slot[wrong][0])
        return None

    def arrived(self, where: slice | np.ndarray) -> None:
        """A message about some slots has come: the next may not before they are `answered`."""
        if type(where) is slice:
            self._awaited_bytes[where] = self._nones[: where.stop - where.start]
        else:
            self._awaited[where] = _NONE

    def go_on(self, request: Request, places: np.ndarray) -> bool:
        """`note` and `begin_rows` in one, for the usual request: in the midst of episodes and of unrolls.

        Args:
          request: not noted yet; the lag must not be bounded.
          places: int32 [4, n], where its rows belong is written here.

        Returns:
          False, and nothing has changed, for any other request.
        """
        where = request.where
        if not request.is_usual or type(where) is not slice:
            return False
        if not self._are_zero(self._at_end_bytes, where):
            return False
        places[:] = self._places[:, where]
        row, returned, steps = self._row[where], self._return[where], self._steps[where]
        row += 1
        steps += 1
        returned += request.reward
        np.equal(row, self.length, out=self._is_at_end[where])
        return True

    def note(self, slot: np.ndarray, step_type: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """Takes in timesteps [n].

        Args:
          slot: int32, whose they are.
          step_type: int8.
          reward: float32; NaN where the timestep could not be used, and then its episode is not counted.

        Returns:
          int32 [n], the unrolls that they close; `num_unrolls` where none. These are finished from now on.
        """
        row, first, last = self._row[slot], step_type == _FIRST, step_type == _LAST
        if np.count_nonzero(first):
            # A simulator that has sent NaN may begin anew without a LAST: nobody was lost.
            lost = first & ~self._has_ended[slot] & (row > 0) & ~np.isnan(self._return[slot])
            self.num_dropped += int(row[lost].sum())
            row[lost] = 0
            self._row[slot] = row
            self._follows[slot[lost]] = False
        closed, closing = self._nowhere[: len(slot)], row == self.length
        if np.count_nonzero(closing):
            closed, owner = closed.copy(), slot[closing]
            closed[closing] = self._unroll[owner]
            self._finished.extend(closed[closing].tolist())
            self._num_waiting[owner] += 1
            self._unroll[owner], self._row[owner], self._follows[owner] = -1, 0, True
        self._has_ended[slot] = last
        self._follow_episodes(slot, first, last, reward)
        return closed

    def may_begin(self, slot: np.ndarray, num_others: int) -> bool:
        """Whether slots [n] may act now, after `num_others` others: there is room for their unrolls, and the
        learner is near enough.
        """
        if num_others + len(slot) > len(self._free):
            return False
        if not self.is_bounded:
            return True
        # What begins outside an update that is under way will be an update older.
        lag = self._num_waiting[slot] + self._is_outside[slot]
        return bool(((lag <= self._max_lag) | (self._unroll[slot] >= 0)).all())

    def held(self, slot: np.ndarray) -> None:
        """Slots [n] share a message in which one waits for the learner, who must not wait for the others.

        Environments that share messages, but not the phase of their unrolls, may so exceed the lag's bound.
        """
        self._is_held[slot] = True

    def begin_rows(self, slot: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The unroll and row, int32 [n] each, to which the timesteps and actions of slots [n] go."""
        row = self._row[slot]
        opening = row == 0
        if np.count_nonzero(opening):
            owner = slot[opening]
            for opened in owner[self._unroll[owner] < 0]:
                self._unroll[opened] = self._free.popleft()
            unroll = self._unroll[owner]
            self._slot_of[unroll] = owner
            self._continues[unroll] = self._follows[owner]
            self._version_of[unroll] = self.version
        self._row[slot] = row + 1
        self._is_at_end[slot] = row + 1 == self.length
        self._is_held[slot] = False
        return self._unroll[slot], row

    def answered(self, where: slice | np.ndarray) -> None:
        """Some slots have their actions: their next message may come."""
        if type(where) is slice:
            self._awaited_bytes[where] = self._has_ended_bytes[where]
        else:
            self._awaited[where] = self._has_ended[where]

    @property
    def num_finished(self) -> int:
        """Unrolls that the learner may take."""
        return len(self._finished)

    @property
    def all_finished(self) -> bool:
        """Whether there are finished unrolls, and one of every live slot that can finish one."""
        owners = {int(self._slot_of[unroll]) for unroll in self._finished}
        return bool(owners) and owners >= set(np.flatnonzero(self.is_live & ~self._is_held).tolist())

    def take(self, count: int) -> Taken:
        """At most `count` of the finished unrolls, the oldest first.

        Where the lag is bounded or the unrolls must be of different slots, at most one of every slot.
        """
        if self.is_bounded or self._distinct:
            chosen: dict[int, int] = {}
            for unroll in self._finished:
                if len(chosen) < count:
                    chosen.setdefault(int(self._slot_of[unroll]), unroll)
            unrolls = list(chosen.values())
        else:
            unrolls = [self._finished[place] for place in range(min(count, len(self._finished)))]
        gone = set(unrolls)
        self._finished = collections.deque(unroll for unroll in self._finished if unroll not in gone)
        unroll = np.array(sorted(unrolls, key=lambda unroll: self._slot_of[unroll]), np.int32)
        self._is_outside[:] = True
        self._is_outside[self._slot_of[unroll]] = False
        return Taken(
            unroll, self._slot_of[unroll], self._continues[unroll], self.version - self._version_of[unroll]
        )

    def give_back(self, unroll: np.ndarray) -> None:
        """Unrolls [n] that were taken are copied: their places are free."""
        self._free.extend(unroll.tolist())

    def learned(self, slot: np.ndarray) -> None:
        """The unrolls taken from slots [n] are learned from, and what followed from it is published."""
        np.subtract.at(self._num_waiting, slot, 1)
        self._is_outside[:] = False

    def take_episodes(self) -> Episodes:
        """The episodes that ended since the last call."""
        ended, self._ended = self._ended, []
        none = Episodes(np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64))
        return Episodes(*map(np.concatenate, zip(none, *ended, strict=True)))

    def _are_zero(self, of_slots: bytearray, where: slice) -> bool:
        return of_slots.startswith(self._zeros[: where.stop - where.start], where.start)

    def _follow_episodes(
        self, slot: np.ndarray, first: np.ndarray, last: np.ndarray, reward: np.ndarray
    ) -> None:
        returned, steps = self._return[slot] + reward, self._steps[slot] + 1
        if np.count_nonzero(first):
            # What a FIRST earns does not count; but if it could not be used, nor does its episode.
            returned[first], steps[first] = np.where(np.isnan(reward[first]), np.nan, 0.0), 0
        self._return[slot], self._steps[slot] = returned, steps
        ended = last & ~np.isnan(returned)
        if np.count_nonzero(ended):
            self._ended.append(Episodes(slot[ended], returned[ended], steps[ended]))
