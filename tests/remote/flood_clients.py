"""Those who flood a learner, until they are ended: `python flood_clients.py KIND ADDRESS DIR`.

Prints now and then how often it has done it.
"""

import asyncio
import contextlib
import os
import pathlib
import random
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator

import grpc
import numpy as np
from counting_environment import Counting

from zerocopy_seed.remote import bridge_pb2, bridge_pb2_grpc
from zerocopy_seed.remote.codec import encode_observations
from zerocopy_seed.remote.specs import spec_to_message
from zerocopy_seed.remote.wire_format import make_wire_format

SPEC = spec_to_message(Counting().spec)
WIRE = make_wire_format(Counting().spec)


def raw(address: str, directory: pathlib.Path) -> Iterator[None]:
    """Connections that say nothing, noise, HTTP, or the beginning of a TLS hello; many stay open."""
    host, _, port = address.rpartition(":")
    held: list[socket.socket] = []
    words = (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    while True:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), 1.0)
            held.append(connection)
            connection.sendall(random.choice((*words, os.urandom(random.randrange(1, 65536)))))
        if len(held) > 200:
            held.pop(random.randrange(len(held))).close()
        time.sleep(0.002)
        yield


def squatters(address: str, directory: pathlib.Path) -> Iterator[None]:
    """Connections over TLS that say hello and then call nothing; as many stay open as are let."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    context.set_alpn_protocols(["h2"])
    held: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), 1.0)
            stream = context.wrap_socket(connection, server_hostname=host)
            stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            held.append(stream)
        if len(held) > 200:
            held.pop(0).close()
        time.sleep(0.1)
        yield


def channel_to(address: str, directory: pathlib.Path) -> grpc.Channel:
    tls = grpc.ssl_channel_credentials((directory / "ca.pem").read_bytes())
    return grpc.secure_channel(address, tls, options=[("grpc.use_local_subchannel_pool", 1)])


def strangers(address: str, directory: pathlib.Path) -> Iterator[None]:
    """Calls without the token or with another, with large messages and metadata."""
    while True:
        with channel_to(address, directory) as channel:
            stub = bridge_pb2_grpc.BridgeStub(channel)
            for _ in range(50):
                metadata = random.choice(((), (("authorization", f"Bearer {random.random()}"),)))
                request = bridge_pb2.JoinRequest(software="x" * random.choice((1, 100_000)))
                with contextlib.suppress(grpc.RpcError):
                    random.choice((stub.Join, stub.Describe))(request, metadata=metadata, timeout=5)
                yield


def insiders(address: str, directory: pathlib.Path) -> Iterator[None]:
    """Who has the token: joins without a stream, streams without a session, garbage, sizes of every kind."""
    bearer = ("authorization", f"Bearer {(directory / 'token').read_text().strip()}")
    while True:
        with channel_to(address, directory) as channel:
            stub = bridge_pb2_grpc.BridgeStub(channel)
            step = channel.stream_stream("/zerocopy_seed.v1.Bridge/Step")
            for _ in range(50):
                session = ""
                with contextlib.suppress(grpc.RpcError):
                    num_envs = random.randrange(1, 24)
                    request = bridge_pb2.JoinRequest(
                        version=1, run_id="run", spec=SPEC, num_environments=num_envs
                    )
                    session = stub.Join(request, metadata=(bearer,), timeout=5).id
                messages = [
                    os.urandom(random.randrange(1, 2000)),
                    bytes(2**21),  # more than the learner takes
                    bridge_pb2.Observations(environment=bytes(4 * 10_000)).SerializeToString(),
                    bridge_pb2.Observations(goodbye=True).SerializeToString(),
                ]
                metadata = (bearer, ("session", session if random.random() < 0.9 else "another"))
                with contextlib.suppress(grpc.RpcError):
                    for _ in step(iter([random.choice(messages)]), metadata=metadata, timeout=5):
                        pass
                yield


def deaf(address: str, directory: pathlib.Path) -> Iterator[None]:
    """Sends steps as fast as they go, of every number of rows, and reads no answer."""
    bearer = ("authorization", f"Bearer {(directory / 'token').read_text().strip()}")
    tls = grpc.ssl_channel_credentials((directory / "ca.pem").read_bytes())
    while True:
        asyncio.run(_send(address, tls, bearer, random.randrange(1, 24)))
        yield


async def _send(address: str, tls: grpc.ChannelCredentials, bearer: tuple[str, str], num_envs: int) -> None:
    async with grpc.aio.secure_channel(address, tls) as channel:
        stub = bridge_pb2_grpc.BridgeStub(channel)
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
            request = bridge_pb2.JoinRequest(version=1, run_id="run", spec=SPEC, num_environments=num_envs)
            session = await stub.Join(request, metadata=(bearer,))  # pyright: ignore
            step = channel.stream_stream("/zerocopy_seed.v1.Bridge/Step")
            call = step(metadata=(bearer, ("session", session.id)))
            simulator = Counting(num_envs)
            first = simulator.reset([0] * num_envs)
            async with asyncio.timeout(2):
                for number in range(1, 10**6):
                    some = np.arange(random.randrange(1, num_envs + 1), dtype=np.int32)
                    rows = first._replace(
                        step_type=first.step_type[some],
                        reward=first.reward[some],
                        discount=first.discount[some],
                        observation={"count": first.observation["count"][some]},
                    )
                    await call.write(encode_observations(WIRE, number, some, rows))  # pyright: ignore
        await asyncio.sleep(0.1)


KINDS: dict[str, Callable[[str, pathlib.Path], Iterator[None]]] = {
    "raw": raw,
    "squatters": squatters,
    "strangers": strangers,
    "insiders": insiders,
    "deaf": deaf,
}


def main(kind: str, address: str, directory: pathlib.Path) -> None:
    """Goes on until the process is ended."""
    said_at = time.monotonic()
    for number, _ in enumerate(KINDS[kind](address, directory), 1):
        if time.monotonic() - said_at > 1.0:
            said_at = time.monotonic()
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]))
