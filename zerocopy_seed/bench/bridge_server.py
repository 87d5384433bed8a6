"""The learner's process of `bench bridge`: a server with a stand-in learner, and a bare echo beside it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import grpc.aio
import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.bench.bridge_client import ECHO
from zerocopy_seed.remote.addresses import server_options
from zerocopy_seed.remote.bridge import RunDescription
from zerocopy_seed.remote.codec import encode_actions
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.server import Server
from zerocopy_seed.remote.wire_format import make_wire_format
from zerocopy_seed.types import ActingParams, Agent, AgentState, Exploration, RecurrentState


class Served(NamedTuple):
    """Where to send to, and who answers there.

    Attributes:
      address: of the bridge.
      echo: address of the bare echo, or "".
      server: the bridge.
      engine: what it acts with.
      copies: to be set where unrolls are to be copied for the learner, as in training. On an accelerator that
        is the device's work; on a CPU it takes the cores that are measured.
    """

    address: str
    echo: str
    server: Server
    engine: Engine
    copies: threading.Event


class Crossings:
    """Counts the bytes of observations that arrive and those that go up to the device, padding apart."""

    def __init__(self, engine: Engine):
        self.arrived = self.gone_up = 0
        add, step, close = engine.add, engine._step, engine._close
        nobody = engine.num_slots

        def counting_add(request):
            self.arrived += sum(leaf.nbytes for leaf in request.leaves)
            add(request)

        def counting(program):
            def call(tables, *arguments):
                *_, words, observation = arguments
                num_rows, size = int((words[0] != nobody).sum()), words.shape[1]
                host = [leaf for leaf in jax.tree.leaves(observation) if isinstance(leaf, np.ndarray)]
                self.gone_up += sum(leaf.nbytes for leaf in host) * num_rows // size
                return program(tables, *arguments)

            return call

        replacements: dict[str, Any] = {
            "add": counting_add,
            "_step": counting(step),
            "_close": counting(close),
        }
        vars(engine).update(replacements)


def make_constant_agent() -> Agent:
    """Answers everything with its parameter, an int32."""

    def initial_state(keys, slots):
        return AgentState(RecurrentState((), (), jnp.zeros(slots.shape, jnp.int32)), Exploration(keys))

    def act(params, state, timestep, mode):
        action = jnp.broadcast_to(jnp.int32(params.network), timestep.step_type.shape)
        return action, (), state

    def no_learning(*_):
        raise NotImplementedError

    return Agent(
        init=no_learning, acting=no_learning, initial_state=initial_state, act=act, learn=no_learning
    )


@contextlib.contextmanager
def serve(
    spec: EnvironmentSpec,
    *,
    num_slots: int,
    max_batch: int,
    unroll_length: int,
    echo_rows: int = 0,
    environment: str = "",
    settings: dict[str, Any] | None = None,
) -> Iterator[Served]:
    """Serves the constant policy; a thread takes unrolls and learns nothing, so that acting never waits long.

    It lets go of them uncopied, unless `Served.copies` is set.

    Args:
      spec: of the environments.
      num_slots: for so many of them.
      max_batch: see `Engine`.
      unroll_length: T.
      echo_rows: environments of a message that the echo answers; 0 for no echo.
      environment: what actors are told to run.
      settings: of it.
    """
    params = ActingParams(jnp.int32(0))
    engine = Engine(
        make_constant_agent(),
        spec,
        params,
        seed=0,
        num_slots=num_slots,
        unroll_length=unroll_length,
        max_policy_lag=np.inf,
        max_batch=max_batch,
    )
    engine.warm_up()
    run = RunDescription("bench", environment, settings or {}, spec, num_environments=num_slots)
    has_ended, copies = threading.Event(), threading.Event()

    def learn() -> None:
        while not has_ended.is_set():
            if copies.is_set():
                taken = engine.take(0.1)
                if taken is not None:
                    engine.publish(params, taken.slot)
            else:
                engine.discard(0.1)

    learner = threading.Thread(target=learn, name="learner")
    with Server(engine, run, ["127.0.0.1:0"], in_thread=False) as server:
        learner.start()
        try:
            if not echo_rows:
                yield Served(server.addresses[0], "", server, engine, copies)
                return
            answer = encode_actions(make_wire_format(spec), 1, np.zeros(echo_rows, np.int32))
            most = server.bridge.wire.max_message_bytes(engine.max_rows)
            with _serve_echo(server.loop, answer, most) as address:
                yield Served(server.addresses[0], address, server, engine, copies)
        finally:
            has_ended.set()
            learner.join()


@contextlib.contextmanager
def _serve_echo(loop: asyncio.AbstractEventLoop, answer: bytes, max_message_bytes: int) -> Iterator[str]:
    """Answers every message with `answer`, in the bridge's own event loop: what gRPC alone can do."""

    async def echo(_: Any, context: grpc.aio.ServicerContext) -> None:
        while await context.read() is not grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
            await context.write(answer)

    async def start() -> tuple[grpc.aio.Server, str]:
        server = grpc.aio.server(options=server_options(max_message_bytes))
        _, service, method = ECHO.split("/")
        handler = grpc.stream_stream_rpc_method_handler(echo)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, f"127.0.0.1:{port}"

    server, address = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield address
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result()
