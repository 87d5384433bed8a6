"""Taking part in a run, for whoever brings the environments. Imports no JAX."""

from __future__ import annotations

import asyncio
import contextlib

from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.errors import ProtocolError, Unavailable
from zerocopy_seed.remote.transport import SOFTWARE, VERSION, Stream, Transport


async def join(
    transport: Transport, run: bridge_pb2.Run, spec: bridge_pb2.Spec, num_envs: int
) -> tuple[Stream, list[int]]:
    """Takes part in a run, with environments of this spec.

    Args:
      transport: to the learner.
      run: as the learner described it.
      spec: of the environments.
      num_envs: how many, N.

    Returns:
      The stream, and seeds [N] for the environments' first resets.

    Raises:
      UserError: the learner refuses.
      Unavailable: it broke off, or has no room.
    """
    request = bridge_pb2.JoinRequest(
        version=VERSION, software=SOFTWARE, run_id=run.run_id, spec=spec, num_environments=num_envs
    )
    session = await transport.join(request)
    if len(session.seeds) != num_envs:
        raise ProtocolError("Session.seeds", f"{num_envs} of them", str(len(session.seeds)))
    stream = _ReadAhead(transport.open(session.id))
    await asyncio.sleep(0)  # it begins to read before the environments begin to step
    return stream, list(session.seeds)


class _ReadAhead:
    """A stream that is read as messages come, whether or not anybody waits for one.

    A learner that ends its run says goodbye and is gone soon after. What lies unread then is lost, and an
    environment's step may take longer than that.
    """

    def __init__(self, stream: Stream):
        self._stream = stream
        self._messages: asyncio.Queue[bytes | None | Exception] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read_on())

    async def write(self, message: bytes) -> None:
        with contextlib.suppress(Unavailable):  # reading says how the stream has ended
            await self._stream.write(message)

    async def read(self) -> bytes | None:
        message = await self._messages.get()
        if isinstance(message, bytes):
            return message
        self._messages.put_nowait(message)  # the end stays the end
        if message is None:
            return None
        raise message

    async def finish(self) -> None:
        await self._stream.finish()

    async def _read_on(self) -> None:
        message: bytes | None | Exception = b""
        while isinstance(message, bytes):
            try:
                message = await self._stream.read()
            except Exception as error:
                message = error
            self._messages.put_nowait(message)
