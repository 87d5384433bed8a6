"""A small server made of the generated code alone: it answers every step with zeros."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable

import grpc
import grpc.aio
import numpy as np

from zerocopy_envs.types import BoundedAction, EnvironmentSpec, MultiDiscreteAction
from zerocopy_seed.remote import bridge_pb2, bridge_pb2_grpc
from zerocopy_seed.remote.addresses import server_options
from zerocopy_seed.remote.specs import spec_to_message


class EchoServer(bridge_pb2_grpc.BridgeServicer):
    """Serves in a thread, as a context manager.

    Args:
      spec: of the run.
      address: where to listen.
      environment: of the run.
      settings: of the run.
      num_environments: of the run.
      refuse: status and line with which calls named in it (`Describe`, `Join`, `Step`) end.
      may_answer: whether the server answers now, asked for each message.
      max_message_bytes: that it takes.

    Attributes:
      joins: every JoinRequest.
      messages: every message of each stream.
      goodbyes: for each stream that has ended, whether the actor said goodbye.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        address: str = "127.0.0.1:0",
        *,
        environment: str = "",
        settings: dict | None = None,
        num_environments: int = 4,
        refuse: dict[str, tuple[grpc.StatusCode, str]] | None = None,
        may_answer: Callable[[bridge_pb2.Observations], bool] = lambda message: True,
        max_message_bytes: int = 2**26,
        options: list[tuple[str, int]] | None = None,
    ):
        self._spec, self._wanted = spec, address
        self._run = bridge_pb2.Run(
            version=1,
            software="echo",
            run_id="run",
            environment=environment,
            settings=json.dumps(settings or {}),
            spec=spec_to_message(spec),
            num_environments=num_environments,
        )
        self.refuse = refuse or {}
        self.may_answer = may_answer
        self._options = options or server_options(max_message_bytes)
        self.joins: list[bridge_pb2.JoinRequest] = []
        self.messages: list[list[bridge_pb2.Observations]] = []
        self.goodbyes: list[bool] = []
        self.ended = False
        action = spec.action
        self._dtype = np.float32 if isinstance(action, BoundedAction) else np.int32
        self._shape: tuple[int, ...] = ()
        if isinstance(action, BoundedAction):
            self._shape = action.shape
        elif isinstance(action, MultiDiscreteAction):
            self._shape = (len(action.num_values),)

    def __enter__(self) -> EchoServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(0), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_until(self, condition: Callable[[EchoServer], bool], timeout_s: float = 20.0) -> None:
        """Returns once it holds."""
        deadline = time.monotonic() + timeout_s
        while not condition(self):
            assert time.monotonic() < deadline, (self.joins, [len(m) for m in self.messages], self.goodbyes)
            time.sleep(0.005)

    @property
    def num_messages(self) -> int:
        """Of all streams."""
        return sum(map(len, self.messages))

    async def _start(self) -> None:
        self._server = grpc.aio.server(options=self._options)
        bridge_pb2_grpc.add_BridgeServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self._wanted)
        self.address = self._wanted if port in (0, 1) else f"127.0.0.1:{port}"
        await self._server.start()

    async def _refuse(self, call: str, context) -> None:
        if call in self.refuse:
            await context.abort(*self.refuse[call])

    async def Describe(self, request, context):
        await self._refuse("Describe", context)
        assert request.version == 1
        return self._run

    async def Join(self, request, context):
        self.joins.append(request)
        await self._refuse("Join", context)
        assert (request.version, request.run_id) == (1, "run")
        places = range(request.num_environments)
        return bridge_pb2.Session(
            id=f"session {len(self.joins)}", slots=places, seeds=[7 + i for i in places]
        )

    async def Step(self, request_iterator, context):
        await self._refuse("Step", context)
        assert dict(context.invocation_metadata())["session"] == f"session {len(self.joins)}"
        messages: list[bridge_pb2.Observations] = []
        self.messages.append(messages)
        waiting: list[bridge_pb2.Observations] = []
        listener = asyncio.ensure_future(self._listen(request_iterator, messages, waiting))
        try:
            while not listener.done():
                if self.ended:
                    yield bridge_pb2.Actions(goodbye=True)
                    await listener
                for message in [message for message in waiting if self.may_answer(message)]:
                    waiting.remove(message)
                    yield self._answer(message)
                await asyncio.sleep(0.001)
        finally:
            listener.cancel()
            self.goodbyes.append(listener.done() and not listener.cancelled() and listener.result())

    async def _listen(self, request_iterator, messages: list, waiting: list) -> bool:
        """Until the actor ends its direction: whether it said goodbye."""
        async for message in request_iterator:
            if message.goodbye:
                return True
            messages.append(message)
            waiting.append(message)
        return False

    def _answer(self, message: bridge_pb2.Observations) -> bridge_pb2.Actions:
        num_rows = len(message.environment) // 4
        action = np.zeros((num_rows, *self._shape), self._dtype)
        return bridge_pb2.Actions(request=message.request, action=action.tobytes())
