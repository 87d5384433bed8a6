"""Messages to an actor: in their order, one at a time, and no more read from one that reads none."""

import asyncio
from typing import Any

import grpc.aio

from zerocopy_seed.remote.outbox import Outbox


class Context:
    """Writes end when they are told to."""

    def __init__(self):
        self.begun, self.ends = [], []

    async def write(self, message):
        self.begun.append(message)
        self.ends.append(asyncio.get_running_loop().create_future())
        await self.ends[-1]


def test_messages_are_written_one_after_another_and_reading_waits_for_them():
    async def run():
        context: Any = Context()
        outbox = Outbox(context)
        for message in (b"1", b"2", b"3"):
            outbox.put(message)
        assert context.begun == [b"1"]  # at once
        room = asyncio.ensure_future(outbox.has_room())
        for number in range(3):
            await asyncio.sleep(0)
            assert not room.done() or number == 2
            context.ends[number].set_result(None)
            await asyncio.sleep(0)
        assert context.begun == [b"1", b"2", b"3"]
        await asyncio.wait_for(room, 1)
        outbox.put(b"4")
        assert context.begun[-1] == b"4"
        await asyncio.wait_for(outbox.has_room(), 1)  # one that is being written is no reason to wait

    asyncio.run(run())


def test_a_stream_that_has_ended_takes_messages_and_forgets_them():
    async def run():
        context: Any = Context()
        outbox = Outbox(context)
        outbox.put(b"1")
        outbox.put(b"2")
        room = asyncio.ensure_future(outbox.has_room())
        await asyncio.sleep(0)
        context.ends[0].set_exception(grpc.aio.InternalError("gone"))
        await asyncio.wait_for(room, 1)
        assert context.begun == [b"1"]

    asyncio.run(run())


def test_a_stream_ends_after_its_last_write_unless_nobody_reads(monkeypatch):
    monkeypatch.setattr("zerocopy_seed.remote.outbox._FINISH_WITHIN_S", 0.05)

    async def run():
        context: Any = Context()
        outbox = Outbox(context)
        await outbox.finish()  # nothing is being written
        outbox.put(b"1")
        finished = asyncio.ensure_future(outbox.finish())
        await asyncio.sleep(0)
        assert not finished.done()
        context.ends[0].set_result(None)
        await asyncio.wait_for(finished, 1)
        outbox.put(b"2")
        await asyncio.wait_for(outbox.finish(), 1)
        assert not context.ends[1].done()

    asyncio.run(run())
