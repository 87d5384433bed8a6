"""The bridge over gRPC: a thread with an event loop that serves actors until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from zerocopy_envs.errors import UserError
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.access import Access, Credentials
from zerocopy_seed.remote.addresses import Address, parse_address, require_free, server_options, taken
from zerocopy_seed.remote.bridge import Bridge, RunDescription
from zerocopy_seed.remote.drivers import Driver, LoopDriver, ThreadDriver
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.errors import ProtocolError, Refused
from zerocopy_seed.remote.guard import TokenGuard
from zerocopy_seed.remote.outbox import Outbox

SERVICE = "zerocopy_seed.v1.Bridge"

_OPEN = Access()
_GOODBYE_S = 2.0  # for actors to hear that the run has ended
_LEAST_LIMIT = 2**20  # bytes of a message
_LOOK_EVERY_S = 5.0  # for actors that joined and never came


class Server:
    """Serves `engine` to actors; a context manager that serves from its beginning to its end.

    Args:
      engine: acts.
      run: what actors are told.
      addresses: where to listen.
      in_thread: act in a thread of its own, not in the event loop.
      access: who may join, but for those at Unix sockets: they belong to this process's user, who may all.

    Attributes:
      addresses: where it listens; with the port that was free where 0 was asked for.
      bridge: the sessions.
      loop: in which it serves.
      is_run_over: set before the end where actors have nothing to come back to; else they try to.
    """

    def __init__(
        self,
        engine: Engine,
        run: RunDescription,
        addresses: Sequence[str],
        *,
        in_thread: bool,
        access: Access = _OPEN,
    ):
        self._engine, self._run, self._in_thread, self._access = engine, run, in_thread, access
        self._wanted = [parse_address(address, to_listen=True) for address in addresses]
        self.addresses: tuple[str, ...] = ()
        self.is_run_over = False
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._stop: asyncio.Event
        self.bridge: Bridge

    def __enter__(self) -> Server:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # it has failed and ended by itself
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def failure(self) -> str:
        """Why it serves no longer, in one line; "" as long as it does."""
        return f"inference has failed: {self._error}" if self._error is not None else ""

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve_until_stopped())
        except BaseException as error:
            self._error = self._error or error
        finally:
            self.loop.close()
            self._started.set()

    async def _serve_until_stopped(self) -> None:
        self._stop = asyncio.Event()

        def failed(error: BaseException) -> None:
            self._error = error
            self._stop.set()

        def is_alone() -> bool:
            return self.bridge.num_actors == 1

        driver: Driver = (
            ThreadDriver(self._engine, self.loop, failed)
            if self._in_thread
            else LoopDriver(self._engine, self.loop, failed, is_alone)
        )
        bridge = self.bridge = Bridge(self._engine, self._run, driver.notify)
        self._engine.wake = driver.notify
        health = HealthServicer()
        doors = [self._make_server(bridge, health, address) for address in self._wanted]
        try:
            self.addresses = tuple(
                _listen(door, address, self._access.credentials)
                for door, address in zip(doors, self._wanted, strict=True)
            )
            for door in doors:
                await door.start()
            for service in ("", SERVICE):
                await health.set(service, health_pb2.HealthCheckResponse.SERVING)
            self._started.set()
            while not self._stop.is_set():
                bridge.free_forgotten()
                bridge.name_unusable()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _LOOK_EVERY_S)
            await health.enter_graceful_shutdown()
            bridge.end(say_goodbye=self.is_run_over)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S if self.is_run_over else 0):
                    while bridge.num_actors:
                        await asyncio.sleep(0.01)
        finally:
            for door in doors:
                await door.stop(0)
            driver.close()

    def _make_server(self, bridge: Bridge, health: HealthServicer, address: Address) -> grpc.aio.Server:
        """One for each address, since not all who come may do the same."""
        num_slots, access = self._engine.num_slots, self._access
        if address.path:
            server = grpc.aio.server(options=server_options(_message_limit(bridge, num_slots)))
            max_envs = math.inf
        else:
            max_envs = access.max_envs_per_actor
            most, token = _message_limit(bridge, min(num_slots, max_envs)), access.credentials.token
            server = grpc.aio.server(
                # As many again may connect as may call, so that those who are too many hear why.
                options=server_options(most, 2 * access.max_streams),
                maximum_concurrent_rpcs=access.max_streams,
                interceptors=[TokenGuard(token)] if token else [],
            )
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        server.add_generic_rpc_handlers((_make_handlers(bridge, max_envs),))
        return server


def _message_limit(bridge: Bridge, num_envs: int) -> int:
    # A spec, which joining sends, may be larger than a step of few environments.
    return max(bridge.wire.max_message_bytes(num_envs), _LEAST_LIMIT)


def _listen(server: grpc.aio.Server, address: Address, credentials: Credentials) -> str:
    """Where it listens, the port chosen."""
    require_free(address)
    try:
        if address.path:
            mask = os.umask(0o177)  # whoever can connect may join: not for a moment another user
            try:
                server.add_insecure_port(address.text)
            finally:
                os.umask(mask)
            return address.text
        if credentials.certificate:
            port = server.add_secure_port(
                address.text,
                grpc.ssl_server_credentials(
                    [(credentials.key, credentials.certificate)],
                    root_certificates=credentials.ca or None,
                    require_client_auth=bool(credentials.ca),
                ),
            )
        else:
            port = server.add_insecure_port(address.text)
    except RuntimeError as error:
        raise taken(address, str(error)) from error
    return f"{address.text.rpartition(':')[0]}:{port}"


def _make_handlers(bridge: Bridge, max_envs: float) -> grpc.GenericRpcHandler:
    """Step's messages pass as bytes: the codec reads and writes them."""

    def join(request: bridge_pb2.JoinRequest) -> bridge_pb2.Session:
        return bridge.join(request, max_envs)

    def unary(method: Callable[[Any], Any], request: Any) -> grpc.RpcMethodHandler:
        async def call(data: bytes, context: grpc.aio.ServicerContext):
            try:
                return method(request.FromString(data))
            except DecodeError:
                name = request.DESCRIPTOR.full_name
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, f"expected a {name}, found {len(data)} other bytes"
                )
            except Refused as refusal:
                await context.abort(grpc.StatusCode[refusal.code], refusal.message)
            except UserError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        return grpc.unary_unary_rpc_method_handler(
            call,  # it parses by itself, since gRPC would log a traceback for each that is none
            response_serializer=lambda response: response.SerializeToString(),  # pyright: ignore
        )

    async def step(_, context: grpc.aio.ServicerContext) -> None:
        await _serve_stream(bridge, context)

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Describe": unary(bridge.describe, bridge_pb2.DescribeRequest),
            "Join": unary(join, bridge_pb2.JoinRequest),
            "Step": grpc.stream_stream_rpc_method_handler(step),
        },
    )


async def _serve_stream(bridge: Bridge, context: grpc.aio.ServicerContext) -> None:
    outbox = Outbox(context)
    metadata = dict(context.invocation_metadata() or ())
    try:
        connection = bridge.open(str(metadata.get("session", "")), outbox.put)
    except Refused as refusal:
        await context.abort(grpc.StatusCode[refusal.code], refusal.message)
    try:
        while (data := await context.read()) is not grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
            connection.receive(data)
            await outbox.has_room()
        connection.close()
        await outbox.finish()
    except ProtocolError as error:
        connection.close()
        await outbox.finish()
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    finally:
        connection.close()
