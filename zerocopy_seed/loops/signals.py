"""Stopping when asked: the first SIGINT or SIGTERM saves what must not be lost, the second ends at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def hearing_signals(function: Callable[[], T]) -> T:
    """What `function` returns or raises, called in a thread: signals are heard even where it is no Python.

    The main thread hears signals between two steps of Python, and XLA compiles for minutes in one.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@contextlib.contextmanager
def ending_at_once(line: str) -> Iterator[None]:
    """SIGINT or SIGTERM end the process with code 0 and `line` on stderr: there is nothing to save."""

    def handle(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            print(f"\n{signal.Signals(number).name}: {line}", file=sys.stderr, flush=True)
        os._exit(0)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class StopRequest:
    """A context in which the first SIGINT or SIGTERM sets `signal_name` instead of ending the process.

    Args:
      same_within_s: a second one within so many seconds is the same one, by another way.
    """

    def __init__(self, same_within_s: float = 0.0) -> None:
        self.signal_name: str | None = None
        self._same_within_s, self._heard_at = same_within_s, 0.0
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
        now = time.monotonic()
        if self.signal_name is not None:
            if now - self._heard_at < self._same_within_s:
                return
            os._exit(128 + number)
        self.signal_name, self._heard_at = signal.Signals(number).name, now
        print(
            f"\n{self.signal_name}: saving, then stopping, after the compilation if one is under way; "
            "once more ends at once",
            file=sys.stderr,
            flush=True,
        )
