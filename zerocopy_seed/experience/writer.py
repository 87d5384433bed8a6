"""Writes rounds into a record, in a thread. Imports no JAX."""

from __future__ import annotations

import dataclasses
import errno
import os
import queue
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zerocopy_seed.experience.index import (
    UNFINISHED,
    Description,
    Index,
    Shard,
    check_fits,
    open_index,
    write_index,
)
from zerocopy_seed.manifest import file_sha256

CONTINUES = ".continues"
IS_DUE = "is_due"
_WAITING = 2  # calls of `add` whose arrays wait, on the device, to be fetched
_HEADER_BYTES = 1024  # of an array in a file, at most


class RecordWriter:
    """Appends rounds to the record in `directory`, which it makes; a context manager that ends with the rest.

    What cannot be written (a full disk) is complained about once and left out: training goes on, and a
    reader learns that slots' unrolls do not follow each other there. At `max_bytes` recording ends: what is
    there stays as it is.

    Args:
      directory: of the record; nobody else writes into it.
      description: of the rounds; those that are there must fit it.
      max_bytes: of all shards together.
      shard_bytes: of a shard, about.
      warn: called with one line.

    Raises:
      UserError: the directory holds something else, or a record that does not fit.
      OSError: a new record cannot be begun.
    """

    def __init__(
        self,
        directory: Path,
        description: Description,
        *,
        max_bytes: float,
        shard_bytes: float,
        warn: Callable[[str], None] = warnings.warn,
    ):
        self._directory, self._warn = directory, warn
        found = open_index(directory)
        self._index = found or Index(description)
        check_fits(str(directory), description, self._index.description)
        self._rounds_per_shard = max(1, int(min(shard_bytes, max_bytes) // description.round_bytes))
        self._max_bytes = max_bytes
        self._names = tuple(description.leaves)
        self._parts: list[dict[str, np.ndarray]] = []
        self._num_held = 0
        self._is_gap, self._is_full, self._has_warned = True, False, False
        self._queue: queue.Queue[tuple[Mapping[str, Any], np.ndarray] | None] = queue.Queue(_WAITING)
        if found is None:
            directory.mkdir(parents=True, exist_ok=True)
            write_index(directory, self._index)
        self._thread = threading.Thread(name="record", target=self._run)
        self._thread.start()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_rounds(self) -> int:
        """Rounds in the record's shards."""
        return self._index.num_rounds

    def add(self, arrays: Mapping[str, Any], is_due: np.ndarray) -> None:
        """Appends rounds; waits while those before are not yet written.

        Args:
          arrays: by name [at least n, ...], numpy's or others' that numpy fetches; nobody writes into them.
          is_due: [n] bool, where an update followed.
        """
        if not self._is_full:
            self._queue.put((arrays, is_due))

    def close(self) -> None:
        """Writes what is left, and ends the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._hold(*item)
                while self._num_held >= self._rounds_per_shard:
                    self._write_shard()
            except Exception as error:  # a thread that ends here would block the run for ever
                self._lose(error)
        try:
            while self._num_held:
                self._write_shard()
        except Exception as error:
            self._lose(error)

    def _hold(self, arrays: Mapping[str, Any], is_due: np.ndarray) -> None:
        if self._is_full:
            return
        num = len(is_due)
        part = {name: _first(np.asarray(arrays[name]), num) for name in self._names}
        if self._is_gap:
            part[CONTINUES] = part[CONTINUES].copy()
            part[CONTINUES][0] = False
            self._is_gap = False
        self._parts.append({**part, IS_DUE: is_due})
        self._num_held += num

    def _write_shard(self) -> None:
        whole = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        num = min(self._num_held, self._rounds_per_shard)
        self._parts = [{name: rows[num:] for name, rows in whole.items()}]
        self._num_held -= num
        rounds = {name: rows[:num] for name, rows in whole.items()}
        name = f"{len(self._index.shards):06}.npz"
        unfinished = self._directory / f"{name}{UNFINISHED}"
        size = sum(rows.nbytes + _HEADER_BYTES for rows in rounds.values())
        if self._index.size + size > self._max_bytes:
            self._is_full = True
            self._drop()
            self._warn(
                f"{self._directory}: the record has reached record.max_gb = {self._max_bytes / 1e9:g} with "
                f"{self._index.num_rounds:,} unrolls of every slot; recording ends, training goes on"
            )
            return
        try:
            with open(unfinished, "wb") as file:
                np.savez(file, **rounds)  # type: ignore[arg-type]
            sha256 = file_sha256(unfinished, sync=True)
            shard = Shard(name, unfinished.stat().st_size, sha256, num, int(rounds[IS_DUE].sum()))
            os.replace(unfinished, self._directory / name)
            index = dataclasses.replace(self._index, shards=(*self._index.shards, shard))
            write_index(self._directory, index)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        self._index = index

    def _lose(self, error: Exception) -> None:
        self._drop()
        if not self._has_warned:
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = (error.strerror if isinstance(error, OSError) else None) or repr(error)
            self._warn(
                f"{self._directory}: unrolls could not be recorded: {reason}; training goes on without them"
                + (", and recording once there is room" if full else "")
            )
        self._has_warned = True

    def _drop(self) -> None:
        self._parts, self._num_held, self._is_gap = [], 0, True


def _first(rows: np.ndarray, num: int) -> np.ndarray:
    """The first `num` rows, without keeping the others in memory."""
    return rows if len(rows) == num else rows[:num].copy()
