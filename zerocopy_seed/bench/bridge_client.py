"""An actor process of `bench bridge`, without environments, and how the bench talks to it. Imports no JAX.

It sends the same timesteps over and over, as ready bytes, to the bridge or to a bare echo, whenever a line on
its standard input says so, and answers each line with one of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import grpc.aio
import numpy as np

from zerocopy_envs.types import ArraySpec, DiscreteAction, EnvironmentSpec, StepType, TimeStep
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.addresses import client_options, parse_address
from zerocopy_seed.remote.codec import decode_actions, encode_observations
from zerocopy_seed.remote.specs import spec_to_message
from zerocopy_seed.remote.transport import SOFTWARE, VERSION, GrpcTransport, Stream
from zerocopy_seed.remote.wire_format import make_wire_format

ECHO = "/zerocopy_seed.bench/Echo"


class Load(NamedTuple):
    """What a client sends.

    Attributes:
      shape: of one environment's observation.
      dtype: its name.
      rows: environments of a message.
      in_flight: messages that wait for their answers at once.
    """

    shape: tuple[int, ...]
    dtype: str
    rows: int
    in_flight: int

    @property
    def spec(self) -> EnvironmentSpec:
        """Of the environments that there might be."""
        return EnvironmentSpec(ArraySpec(self.shape, self.dtype), DiscreteAction(6))

    @property
    def num_envs(self) -> int:
        """Of one client."""
        return self.rows * self.in_flight

    def timestep(self, step_type: StepType) -> TimeStep:
        """Of one message, [rows]."""
        return TimeStep(
            np.full(self.rows, step_type, np.int8),
            np.zeros(self.rows, np.float32),
            np.ones(self.rows, np.float32),
            np.ones((self.rows, *self.shape), self.dtype),
        )


class Window(NamedTuple):
    """What came of a while, in seconds of `time.monotonic`, which all processes share.

    Attributes:
      seconds: how long it was.
      latencies: of every message that was answered in it, from before it was written to its answer read.
      cpu_s: of all processes, this one among them, for a message.
    """

    seconds: float
    latencies: list[float]
    cpu_s: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return len(self.latencies) / self.seconds


class ClientProcess:
    """Runs this module as a process of its own, executed, not forked; a context manager that ends it.

    Args:
      load: what it sends.
      bridge: address of a `Server`, which it joins.
      echo: address of the bare one, or "".
    """

    def __init__(self, load: Load, bridge: str, echo: str = ""):
        command = [sys.executable, "-m", __spec__.name, json.dumps([load, bridge, echo])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def __enter__(self) -> ClientProcess:
        self._ask("ready")
        self.answer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def start(self, target: str, begin: float, end: float) -> None:
        """Sends to `target`, "bridge" or "echo", from now to `end`.

        The answer: the latencies of what came from `begin` on, the number of all messages, the CPU time.
        """
        self._ask("send", target, begin, end)

    def join(self, number: int) -> None:
        """Joins the bridge so many times more, one after another, each by a channel of its own that is idle
        then. The answer is None.
        """
        self._ask("join", number)

    def answer(self) -> Any:
        """Of what was asked for last; latencies in seconds."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"client process {self.pid} has ended; what it said is above")
        return json.loads(line)

    def _ask(self, *words: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(words) + "\n")


def send_all(clients: Sequence[ClientProcess], target: str, seconds: float) -> Window:
    """All of them send for a while, of which the first tenth is not counted."""
    begin = time.monotonic() + 0.1 * seconds
    end = begin + seconds
    cpu_s = -time.process_time()
    for client in clients:
        client.start(target, begin, end)
    answers = [client.answer() for client in clients]
    cpu_s += time.process_time() + sum(own_s for _, _, own_s in answers)
    num_messages = sum(number for _, number, _ in answers)
    return Window(seconds, [latency for found, _, _ in answers for latency in found], cpu_s / num_messages)


class _Exchange(Protocol):
    """Messages on their way, each of a place of its own."""

    async def send(self, place: int) -> None: ...

    async def receive(self) -> int:
        """The place of the message that is answered."""
        ...


class _BridgeExchange:
    """Its messages are ready bytes, as the echo's are: what encoding takes is part of `ratio_to_ale`.

    A message's number is its place, counted from 1; places never have two on their way.
    """

    def __init__(self, load: Load, stream: Stream):
        self._rows, self._stream = load.rows, stream
        self._wire = make_wire_format(load.spec)
        places = np.arange(load.num_envs, dtype=np.int32).reshape(load.in_flight, load.rows)

        def messages(step_type: StepType) -> list[bytes]:
            return [
                encode_observations(self._wire, 1 + place, environments, load.timestep(step_type))
                for place, environments in enumerate(places)
            ]

        self._messages, self._later = messages(StepType.FIRST), messages(StepType.MID)

    async def send(self, place: int) -> None:
        message, self._messages[place] = self._messages[place], self._later[place]
        await self._stream.write(message)

    async def receive(self) -> int:
        data = await self._stream.read()
        assert data is not None
        return decode_actions(self._wire, data, self._rows).request - 1


class _EchoExchange:
    def __init__(self, load: Load, call: Any):
        self._call = call
        wire = make_wire_format(load.spec)
        environment = np.arange(load.rows, dtype=np.int32)
        self._message = encode_observations(wire, 1, environment, load.timestep(StepType.MID))
        self._waiting: deque[int] = deque()

    async def send(self, place: int) -> None:
        self._waiting.append(place)
        await self._call.write(self._message)

    async def receive(self) -> int:
        await self._call.read()
        return self._waiting.popleft()


async def _send(
    exchange: _Exchange, in_flight: int, begin: float, end: float
) -> tuple[list[float], int, float]:
    """Keeps so many messages on their way until `end`; see `ClientProcess.start`."""
    sent_at = [0.0] * in_flight
    latencies: list[float] = []
    num_messages, cpu_s = 0, -time.process_time()
    for place in range(in_flight):
        sent_at[place] = time.monotonic()
        await exchange.send(place)
    num_waiting = in_flight
    while num_waiting:
        place = await exchange.receive()
        now = time.monotonic()
        num_messages += 1
        if begin <= now < end:
            latencies.append(now - sent_at[place])
        if now < end:
            sent_at[place] = time.monotonic()
            await exchange.send(place)
        else:
            num_waiting -= 1
    return latencies, num_messages, cpu_s + time.process_time()


async def _join(load: Load, address: str) -> _BridgeExchange:
    transport = GrpcTransport(address)
    run = await transport.describe()
    session = await transport.join(
        bridge_pb2.JoinRequest(
            version=VERSION,
            software=SOFTWARE,
            run_id=run.run_id,
            spec=spec_to_message(load.spec),
            num_environments=load.num_envs,
        )
    )
    exchange = _BridgeExchange(load, transport.open(session.id))
    for place in range(load.in_flight):
        await exchange.send(place)
        await exchange.receive()
    return exchange


async def _serve(load: Load, bridge: str, echo: str) -> None:
    exchanges: dict[str, _Exchange] = {"bridge": await _join(load, bridge)}
    idle = []
    if echo:
        channel = grpc.aio.insecure_channel(echo, options=client_options(parse_address(echo)))
        exchanges["echo"] = _EchoExchange(load, channel.stream_stream(ECHO)())
    for line in sys.stdin:  # nothing else has to go on meanwhile: gRPC answers pings in its own threads
        name, *arguments = json.loads(line)
        answer = None
        if name == "send":
            target, begin, end = arguments
            answer = await _send(exchanges[target], load.in_flight, begin, end)
        elif name == "join":
            idle += [await _join(load, bridge) for _ in range(*arguments)]
        print(json.dumps(answer), flush=True)
    os._exit(0)  # without goodbyes


if __name__ == "__main__":
    _load, *_rest = json.loads(sys.argv[1])
    asyncio.run(_serve(Load(tuple(_load[0]), *_load[1:]), *_rest))
