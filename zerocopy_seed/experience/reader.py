"""Reads the rounds of a record in order, again and again. Imports no JAX."""

from __future__ import annotations

import bisect
import concurrent.futures
import hashlib
import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_seed.experience.index import Shard, open_index
from zerocopy_seed.experience.writer import CONTINUES, IS_DUE
from zerocopy_seed.manifest import NotIntact, file_sha256


class Place(NamedTuple):
    """Which round comes next: passes over the record that are finished, and its number in this one."""

    epoch: int
    round: int


class Round(NamedTuple):
    """Arrays by name, whether an update follows, and the place after it."""

    arrays: dict[str, np.ndarray]
    is_due: bool
    next: Place


class RecordReader:
    """The record in `directory` as it is now: what is appended later is not seen.

    Every shard is verified at once, and again whenever it is read. The shard after the one at hand is read in
    a thread. Use it as a context manager: leaving ends the thread.

    Attributes:
      directory: of the record.
      index: what it holds.

    Raises:
      UserError: no record, nothing in it, or a shard that is missing, cut or changed.
    """

    def __init__(self, directory: Path):
        index = open_index(directory)
        if index is None or not sum(shard.num_updates for shard in index.shards):
            raise UserError(
                f"record {directory}",
                expected="a record of some unrolls",
                found="none" if index is None else "one without any",
                remedy=f"record some: train CONFIG --record.dir {directory}",
            )
        self.directory, self.index = directory, index
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "record")
        self._ends = list(itertools.accumulate(shard.num_rounds for shard in index.shards))
        self._number, self._arrays = -1, {}  # the shard at hand
        self._ahead: tuple[int, concurrent.futures.Future[dict[str, np.ndarray]]] | None = None
        try:
            for verify in (self._verify_size, self._verify_hash):  # what is quick comes first
                for shard in index.shards:
                    verify(shard)
        except NotIntact as error:
            raise self._refusal(error) from error

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read(self, place: Place) -> Round:
        """The round at `place`; waits for its shard if that is not there yet.

        Nothing in the first round of a later pass continues what came before.

        Raises:
          UserError: its shard is no longer intact, or there is no such round.
        """
        if place.round >= self._ends[-1]:
            raise UserError(
                f"record {self.directory}",
                expected=f"more than {place.round} unrolls of every slot, as when the run was stopped",
                found=str(self._ends[-1]),
                remedy="give back the record that the run began with",
            )
        number = bisect.bisect_right(self._ends, place.round)
        if number != self._number:
            self._take(number)
        row = place.round - (self._ends[number] - self.index.shards[number].num_rounds)
        arrays = {name: rows[row] for name, rows in self._arrays.items() if name != IS_DUE}
        if place.round == 0:
            arrays[CONTINUES] = np.zeros_like(arrays[CONTINUES])
        is_last = place.round + 1 == self._ends[-1]
        following = Place(place.epoch + 1, 0) if is_last else Place(place.epoch, place.round + 1)
        return Round(arrays, bool(self._arrays[IS_DUE][row]), following)

    def _take(self, number: int) -> None:
        """Makes a shard the one at hand, and begins to read the next."""
        ahead = self._ahead
        if ahead is None or ahead[0] != number:
            ahead = number, self._pool.submit(self._load, self.index.shards[number])
        try:
            self._number, self._arrays = number, ahead[1].result()
        except NotIntact as error:
            raise self._refusal(error) from error
        following = (number + 1) % len(self._ends)
        self._ahead = None
        if following != number:
            self._ahead = following, self._pool.submit(self._load, self.index.shards[following])

    def _load(self, shard: Shard) -> dict[str, np.ndarray]:
        path = self.directory / shard.name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise NotIntact(path, f"unreadable ({error.strerror})") from error
        if hashlib.sha256(content).hexdigest() != shard.sha256:  # of the very bytes that are used
            raise NotIntact(path, "does not match the index's SHA-256")
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (ValueError, OSError, EOFError, KeyError) as error:
            raise NotIntact(path, f"no arrays of numpy ({error})") from error
        leaves: Mapping[str, Mapping[str, Any]] = self.index.description.leaves
        for name, leaf in {**leaves, IS_DUE: {"dtype": "bool", "shape": []}}.items():
            wanted = (leaf["dtype"], (shard.num_rounds, *leaf["shape"]))
            if name not in arrays or (str(arrays[name].dtype), arrays[name].shape) != wanted:
                raise NotIntact(path, f"{name} is not the {wanted[0]}{list(wanted[1])} of the index")
        return arrays

    def _verify_size(self, shard: Shard) -> None:
        path = self.directory / shard.name
        if not path.is_file():
            raise NotIntact(path, "missing")
        if (size := path.stat().st_size) != shard.size:
            raise NotIntact(path, f"{size} bytes, the index says {shard.size}")

    def _verify_hash(self, shard: Shard) -> None:
        path = self.directory / shard.name
        try:
            sha256 = file_sha256(path)
        except OSError as error:
            raise NotIntact(path, f"unreadable ({error.strerror})") from error
        if sha256 != shard.sha256:
            raise NotIntact(path, "does not match the index's SHA-256")

    def _refusal(self, error: NotIntact) -> UserError:
        return UserError(
            f"record {self.directory}",
            expected="intact shards",
            found=str(error),
            remedy="restore it from a copy, or record anew",
        )
