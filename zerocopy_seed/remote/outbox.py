"""What is sent to one actor: writes that need no task. Imports no JAX."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc.aio


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
                return
            write = self._context.write(self._messages.popleft())
