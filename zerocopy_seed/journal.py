"""What happens to a run besides training: `events.jsonl`, one flat JSON object a line. Imports no JAX."""

from __future__ import annotations

import contextlib
import datetime
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerocopy_seed.files import append_whole

FILE_NAME = "events.jsonl"

_AT_ONCE = 10  # lines of one kind, before they are spaced out
_EVERY_S = 60.0  # and then
_LONGEST = 2000  # characters of a message


class Journal:
    """Appends to a run's `events.jsonl`; a context manager.

    Of one kind at most ten lines are written at once and one a minute after that; the others are counted, and
    the next line of the kind says how many. So what repeats for days stays small.

    Args:
      path: of the file; lines are appended to what is there.
      run_id: on every line.
      clock: seconds, which never go backwards.
    """

    def __init__(self, path: Path, run_id: str, *, clock: Callable[[], float] = time.monotonic):
        self._path, self._run_id, self._clock = path, run_id, clock
        self._lock = threading.Lock()
        self._room: dict[str, tuple[float, float]] = {}  # of a kind: lines that it may write, as of when
        self._held_back: dict[str, int] = {}

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for event, count in self._held_back.items():
                self._append({"event": event, "num_held_back": count})
            self._held_back.clear()

    def note(self, event: str, message: str, **fields: Any) -> bool:
        """Writes a line, from any thread; whether it was written, not only counted.

        Args:
          event: its kind.
          message: for people, one line.
          fields: whatever JSON takes.
        """
        with self._lock:
            now = self._clock()
            room, then = self._room.get(event, (float(_AT_ONCE), now))
            room = min(_AT_ONCE, room + (now - then) / _EVERY_S)
            is_written = room >= 1.0
            self._room[event] = room - is_written, now
            if not is_written:
                self._held_back[event] = self._held_back.get(event, 0) + 1
                return False
            held_back = self._held_back.pop(event, 0)
            more = {"num_held_back": held_back} if held_back else {}
            self._append({"event": event, "message": message[:_LONGEST], **fields, **more})
            return True

    def _append(self, fields: dict[str, Any]) -> None:
        moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": moment, "run_id": self._run_id, **fields})
        with contextlib.suppress(OSError):  # a full disk is said elsewhere
            append_whole(self._path, line.encode() + b"\n")
