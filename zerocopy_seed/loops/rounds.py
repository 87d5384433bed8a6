"""Actors' unrolls, taken by all hosts of a run together: an update is all of theirs, or of none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from zerocopy_seed import hosts
from zerocopy_seed.loops.serving import Actors
from zerocopy_seed.remote.engine import Engine, Round


class Rounds:
    """Takes rounds of unrolls, each of which every host has one of; a single host takes its own.

    An agent with a replay stores some rounds before an update is due, and actors of one host may be slower
    than another's: whoever has enough for an update waits for the others, with rounds of nothing.

    Args:
      engine: of this host.
      actors: of this host.
    """

    def __init__(self, engine: Engine, actors: Actors):
        self._engine, self._actors = engine, actors
        self._taken: Round | None = None  # here, and not yet everywhere
        self._has_enough = False  # for an update that is not due elsewhere
        self._slots: list[np.ndarray] = []  # of what this host has stored for it

    def take(self, ends_at: float, is_ending: Callable[[], bool]) -> Round | None:
        """A round, due where it is on all hosts; None at `ends_at` or if `is_ending` on any.

        Args:
          ends_at: on `time.monotonic`.
          is_ending: asked now and then.
        """
        while True:
            now = time.monotonic()
            ends = is_ending() or now >= ends_at
            if self._taken is None and not ends:
                self._taken = self._nothing() if self._has_enough else self._actors.take(ends_at - now)
            if hosts.count() == 1:
                if self._taken is not None or ends:
                    taken, self._taken = self._taken, None
                    return taken
                continue
            is_due = self._taken is not None and self._taken.is_due
            votes = hosts.gather([ends, self._taken is not None, is_due])
            any_ends, all_have, all_are_due = votes[:, 0].any(), votes[:, 1].all(), votes[:, 2].all()
            if self._taken is not None and all_have:
                return self._all_have(self._taken, is_due=bool(all_are_due))
            if any_ends:
                return None

    def _all_have(self, taken: Round, *, is_due: bool) -> Round:
        self._taken = None
        self._has_enough = taken.is_due and not is_due
        if taken.is_due:
            self._slots.append(taken.slot)
        if not is_due:
            return taken._replace(is_due=False)
        slots, self._slots = np.concatenate(self._slots), []
        return taken._replace(slot=slots)

    def _nothing(self) -> Round:
        return Round(self._engine.empty_trajectory(), is_due=True, slot=np.zeros(0, np.int32))


def figures_of_all(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """One host's figures of actors for all: sums of counts, the largest of maxima, else means.

    Args:
      rows: of each host, from `Actors.figures`.
    """
    if len(rows) == 1:
        return rows[0]
    num_episodes = sum(row["num_episodes"] for row in rows)
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        if name.startswith("num_") or name == "dropped_steps":
            found[name] = sum(values)
        elif name.endswith("_max"):
            found[name] = max(values)
        elif name.startswith("episode_"):
            total = sum(row[name] * row["num_episodes"] for row in rows if name in row)
            found[name] = total / num_episodes
        else:
            found[name] = sum(values) / len(values)
    return found
