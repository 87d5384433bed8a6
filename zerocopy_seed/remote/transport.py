"""How an actor talks to a learner: over gRPC, or within one process. Imports no JAX.

The step messages pass through as bytes (see `codec`), unread and uncopied.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from collections.abc import Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from zerocopy_envs.errors import UserError
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.access import NO_CREDENTIALS, Credentials
from zerocopy_seed.remote.addresses import client_options, parse_address
from zerocopy_seed.remote.bridge_pb2_grpc import BridgeStub
from zerocopy_seed.remote.diagnosis import Diagnosis
from zerocopy_seed.remote.errors import Refused, Unavailable

VERSION = 1
"""Of the protocol."""
SOFTWARE = "zerocopy_seed"
try:
    SOFTWARE += f" {importlib.metadata.version('zerocopy_seed')}"
except importlib.metadata.PackageNotFoundError:
    SOFTWARE += " (not installed)"  # run from a source tree

STEP = "/zerocopy_seed.v1.Bridge/Step"
_ANSWER_TIMEOUT_S = 60.0  # a learner that compiles answers late
_LEAVE_TIMEOUT_S = 2.0


class Stream(Protocol):
    """The two directions of a `Step` call. One `write` and one `read` at a time.

    Raises:
      UserError: the learner refuses what was sent.
      Unavailable: it broke off.
    """

    async def write(self, message: bytes) -> None: ...

    async def read(self) -> bytes | None:
        """The next message, or None at the end of the stream."""
        ...

    async def finish(self) -> None:
        """Ends the actor's direction, after a goodbye, and what a `read` waits for within two seconds."""
        ...


class Transport(Protocol):
    """A learner, as an actor sees it. Errors are those of `Stream`."""

    async def describe(self) -> bridge_pb2.Run: ...

    async def join(self, request: bridge_pb2.JoinRequest) -> bridge_pb2.Session: ...

    def open(self, session_id: str) -> Stream: ...

    async def close(self) -> None:
        """Ends what is open, at once; a learner that heard no goodbye takes it for a crash."""
        ...


class Connection(Protocol):
    """A session's stream, as the learner's side sees it."""

    def receive(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Learner(Protocol):
    """The learner's side; calls raise `Refused`."""

    def describe(self, request: bridge_pb2.DescribeRequest) -> bridge_pb2.Run: ...

    def join(self, request: bridge_pb2.JoinRequest) -> bridge_pb2.Session: ...

    def open(self, session_id: str, write: Callable[[bytes], None]) -> Connection: ...


class GrpcTransport:
    """A learner at an address. To be made where an event loop runs.

    Args:
      address: see `parse_address`.
      credentials: what it is shown, and known by; with a CA, over TLS.
      diagnosis: of the same, where it is shared by transports that are made one after the other.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials = NO_CREDENTIALS,
        diagnosis: Diagnosis | None = None,
    ):
        parsed = parse_address(address)
        self._address, self._credentials = parsed.text, credentials
        self._diagnosis = diagnosis or Diagnosis(parsed, credentials)
        options = client_options(parsed)
        if credentials.ca and not parsed.path:
            tls = grpc.ssl_channel_credentials(
                credentials.ca, credentials.key or None, credentials.certificate or None
            )
            self._channel = grpc.aio.secure_channel(self._address, tls, options=options)
        else:
            self._channel = grpc.aio.insecure_channel(self._address, options=options)
        self._stub: Any = BridgeStub(self._channel)

    async def describe(self) -> bridge_pb2.Run:
        request = bridge_pb2.DescribeRequest(version=VERSION, software=SOFTWARE)
        try:
            return await self._ask(self._stub.Describe, request)
        except Unavailable:
            reason = await asyncio.to_thread(self._diagnosis.find_reason)
            if reason is not None:
                raise reason from None
            raise

    async def join(self, request: bridge_pb2.JoinRequest) -> bridge_pb2.Session:
        return await self._ask(self._stub.Join, request)

    def open(self, session_id: str) -> Stream:
        metadata = (("session", session_id), *self._credentials.metadata)
        return _GrpcStream(self._channel.stream_stream(STEP)(metadata=metadata), self._address)

    async def close(self) -> None:
        await self._channel.close()

    async def _ask(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=_ANSWER_TIMEOUT_S, metadata=self._credentials.metadata)
        except grpc.aio.AioRpcError as error:
            raise _translate(error, self._address) from error


class _GrpcStream:
    def __init__(self, call: Any, address: str):
        self._call = call
        self._address = address
        self._cancelled = False

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _translate(error, self._address) from error
        except asyncio.InvalidStateError:  # the call has ended; reading says how
            await self.read()
            raise Unavailable("the learner ended the stream") from None

    async def read(self) -> bytes | None:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _translate(error, self._address) from error
        except asyncio.CancelledError:
            if self._cancelled:
                return None
            raise
        return None if message is grpc.aio.EOF else message  # pyright: ignore[reportAttributeAccessIssue]

    async def finish(self) -> None:
        asyncio.get_running_loop().call_later(_LEAVE_TIMEOUT_S, self._cancel)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    def _cancel(self) -> None:
        self._cancelled = True
        self._call.cancel()


class InProcessTransport:
    """A learner in this process and event loop.

    Args:
      learner: its side of the protocol.
    """

    def __init__(self, learner: Learner):
        self._learner = learner
        self._streams: list[_InProcessStream] = []

    async def describe(self) -> bridge_pb2.Run:
        with _refusals():
            return self._learner.describe(bridge_pb2.DescribeRequest(version=VERSION, software=SOFTWARE))

    async def join(self, request: bridge_pb2.JoinRequest) -> bridge_pb2.Session:
        with _refusals():
            return self._learner.join(request)

    def open(self, session_id: str) -> Stream:
        with _refusals():
            stream = _InProcessStream(self._learner, session_id)
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        for stream in self._streams:
            await stream.finish()


class _InProcessStream:
    def __init__(self, learner: Learner, session_id: str):
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._connection: Connection | None = learner.open(session_id, self._answers.put_nowait)

    async def write(self, message: bytes) -> None:
        if self._connection is None:
            raise Unavailable("the stream has ended")
        with _refusals():
            self._connection.receive(message)

    async def read(self) -> bytes | None:
        return await self._answers.get()

    async def finish(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
            self._answers.put_nowait(None)


@contextlib.contextmanager
def _refusals():
    try:
        yield
    except Refused as refusal:
        if refusal.may_pass:
            raise Unavailable(refusal.message) from refusal
        raise UserError(f"the learner refuses: {refusal.message}") from refusal


def _translate(error: grpc.aio.AioRpcError, address: str) -> Exception:
    """What an ended call means to an actor."""
    code, details = error.code(), " ".join((error.details() or "").split())
    too_large = code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION) or too_large:
        return UserError(f"the learner at {address} refuses: {details}")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        remedy = "--token-file with the one of its bridge.token_file"
        return UserError(f"the learner at {address} refuses: {details}", remedy=remedy)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UserError(f"address {address}", expected="a learner (zerocopy_seed.v1)", found=details)
    return Unavailable(details or code.name)
