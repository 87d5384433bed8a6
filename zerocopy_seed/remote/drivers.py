"""Who calls the engine: the event loop itself, or a thread beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from zerocopy_seed.remote.engine import Engine


class Driver(Protocol):
    """Runs `engine.step` whenever there is something to act upon; answers are given in the event loop."""

    def notify(self) -> None:
        """A request was added, or may now go on; from any thread."""

    def close(self) -> None:
        """Ends it; from the event loop."""


class LoopDriver:
    """Acts in the event loop's own thread: no hand-over, so best for cheap policies.

    Args:
      engine: acts.
      loop: runs; made in its thread.
      failed: called with what acting or an answer raised.
      is_alone: whether there is one actor: then a request waits for no others to share a batch with.
    """

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[BaseException], None],
        is_alone: Callable[[], bool] = lambda: False,
    ):
        self._engine, self._loop, self._failed, self._is_alone = engine, loop, failed, is_alone
        self._thread = threading.get_ident()
        self._is_scheduled = False

    def notify(self) -> None:
        """See `Driver`."""
        if threading.get_ident() != self._thread:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.notify)
        elif self._is_alone():
            self._act()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._act)

    def close(self) -> None:
        """See `Driver`."""

    def _act(self) -> None:
        self._is_scheduled = False
        try:
            answers = self._engine.step()
            _give(answers)
        except BaseException as error:
            self._failed(error)
            return
        if answers and self._engine.has_pending:
            self.notify()


class ThreadDriver:
    """Acts in a thread of its own, so that messages come and go while the device is busy.

    Args:
      engine: acts.
      loop: runs.
      failed: called, in the event loop, with what acting or an answer raised.
    """

    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, failed: Callable[[BaseException], None]
    ):
        self._engine, self._loop, self._failed = engine, loop, failed
        self._notified, self._is_closed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """See `Driver`."""
        self._notified.set()

    def close(self) -> None:
        """See `Driver`."""
        self._is_closed = True
        self._notified.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._notified.wait()
            self._notified.clear()
            if self._is_closed:
                return
            try:
                while answers := self._engine.step():
                    # One hand-over for all of a batch.
                    self._loop.call_soon_threadsafe(self._give, answers)
            except BaseException as error:
                self._loop.call_soon_threadsafe(self._failed, error)
                return

    def _give(self, answers: list) -> None:
        try:
            _give(answers)
        except BaseException as error:
            self._failed(error)


def _give(answers: list) -> None:
    for request, actions in answers:
        request.answer(actions)
