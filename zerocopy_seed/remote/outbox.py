"""What is sent to one actor: writes that need no task. Imports no JAX."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

import grpc.aio

_FINISH_WITHIN_S = 5.0


class Outbox:
    """Messages to an actor, written one after another while its reader waits for the next from it.

    A write begins where its message is put in, without a task of its own: to switch to one takes longer than
    the writing, and a reader that writes does not read meanwhile.

    Args:
      context: of the stream.
    """

    def __init__(self, context: grpc.aio.ServicerContext):
        self._context = context
        self._messages: deque[bytes] = deque()
        self._is_writing = False
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._idle: asyncio.Event | None = None  # where somebody waits for it

    def put(self, message: bytes) -> None:
        """Sends it after those before it."""
        if self._is_writing:
            self._messages.append(message)
            self._is_empty.clear()
        else:
            self._is_writing = True
            self._go_on(self._context.write(message))

    async def has_room(self) -> None:
        """Waits as long as messages wait for the one that is being written: an actor that reads none may
        send none.
        """
        if self._messages:
            await self._is_empty.wait()

    async def finish(self) -> None:
        """Waits until what was put in is written, but not for ever for one who does not read.

        gRPC must not end a stream in the midst of a write: it would fail to, and its other end wait for ever.
        """
        if self._is_writing:
            self._idle = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), _FINISH_WITHIN_S)

    def _go_on(self, write: Any) -> None:
        """Takes a write, and those that wait for it, as far as they go: what a task would do with it."""
        while True:
            try:
                write.send(None).add_done_callback(lambda _, write=write: self._go_on(write))
                return
            except StopIteration:
                pass
            except (grpc.aio.BaseError, asyncio.CancelledError):  # the reader will see that it is over
                self._messages.clear()
            if not self._messages:
                self._is_writing = False
                self._is_empty.set()
                if self._idle is not None:
                    self._idle.set()
                return
            write = self._context.write(self._messages.popleft())
