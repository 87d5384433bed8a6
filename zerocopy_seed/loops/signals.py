"""Stopping when asked: the first SIGINT or SIGTERM saves what must not be lost, the second ends at once."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


class StopRequest:
    """A context in which the first SIGINT or SIGTERM sets `signal_name` instead of ending the process."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __bool__(self) -> bool:
        return self.signal_name is not None

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.signal_name is not None:
            os._exit(128 + number)
        self.signal_name = signal.Signals(number).name
        print(
            f"\n{self.signal_name}: saving, then stopping; once more ends at once",
            file=sys.stderr,
            flush=True,
        )
