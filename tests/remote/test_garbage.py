"""What is no message of an actor's, and what is one but wrong, hurts whoever sends it and nobody else."""

import pathlib
import queue
import random
import re
import socket
import struct
import threading
import time

import grpc
import numpy as np
import pytest
from counting_agent import PARAMS, make_counting_agent
from counting_environment import Counting
from google.protobuf.message import DecodeError

from zerocopy_envs.errors import UserError
from zerocopy_seed.remote import bridge_pb2, bridge_pb2_grpc
from zerocopy_seed.remote.bridge import Bridge, RunDescription
from zerocopy_seed.remote.client import ActorClient
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.errors import ProtocolError, Refused
from zerocopy_seed.remote.server import Server
from zerocopy_seed.remote.specs import spec_to_message

SPEC = Counting(num_pixels=7).spec
NUM_MUTATED = 10_000


def make_engine():
    return Engine(
        make_counting_agent(num_actions=3),
        SPEC,
        PARAMS,
        seed=0,
        num_slots=8,
        unroll_length=3,
        max_policy_lag=np.inf,
        max_batch=8,
    )


def join_request(num_environments=2):
    return bridge_pb2.JoinRequest(
        version=1, run_id="run", spec=spec_to_message(SPEC), num_environments=num_environments
    )


def observations(request=1, environments=(0, 1), step_type=0, **changes):
    num_rows = len(environments)
    fields = {
        "request": request,
        "environment": np.array(environments, np.int32).tobytes(),
        "step_type": bytes([step_type]) * num_rows,
        "reward": bytes(4 * num_rows),
        "discount": np.ones(num_rows, np.float32).tobytes(),
        "observation": [bytes(8 * num_rows), bytes(7 * num_rows)],
    }
    return bridge_pb2.Observations(**(fields | changes))


def mutated(generator, data):
    """A message with some of its bytes changed, cut out, doubled, or put elsewhere."""
    data = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        begin = generator.randrange(len(data) + 1)
        length = generator.choice([1, 1, 2, 4, 8, 100])
        match generator.randrange(6):
            case 0:
                data[begin : begin + length] = generator.randbytes(length)
            case 1:
                del data[begin : begin + length]
            case 2:
                data[begin:begin] = data[begin : begin + length]
            case 3:
                data[begin:begin] = generator.choice([b"\xff" * 9 + b"\x01", b"\x80" * 10, b"\0\0\xc0\x7f"])
            case 4 if begin < len(data):
                data[begin] ^= 1 << generator.randrange(8)
            case _:
                del data[begin:]
    return bytes(data)


def memory_mb():
    """What the process has now: its peak may be of another test."""
    found = re.search(r"VmRSS:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def test_ten_thousand_mutated_messages():
    engine = make_engine()
    bridge = Bridge(engine, RunDescription("run", "tests", {}, SPEC, 8), notify=lambda: None)
    generator = random.Random(0)
    answers = []

    def step():
        for request, actions in engine.step():
            assert ((actions >= 0) & (actions < 3)).all()
            request.answer(actions)
        if engine.take(0.0) is not None:
            engine.publish(PARAMS, np.zeros(0, np.int32))

    def connect():
        session = bridge.join(join_request(6))
        return bridge.open(session.id, answers.append)

    good = bridge.open(bridge.join(join_request(2)).id, answers.append)
    connection, num_refused, num_read, begun_mb = connect(), 0, 0, 0.0
    good.receive(observations(1, step_type=0).SerializeToString())
    step()
    templates = [
        observations(request, environments, step_type).SerializeToString()
        for request in (0, 5, 2**40)
        for environments in ((0,), (5, 0), (0, 1, 2, 3, 4, 5))
        for step_type in (0, 0, 1, 2)
    ]
    for count in range(NUM_MUTATED):
        if count == NUM_MUTATED // 5:
            begun_mb = memory_mb()
        try:
            connection.receive(mutated(generator, generator.choice(templates)))
            num_read += 1
        except ProtocolError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
            num_refused += 1
        if count % 50 == 0:
            connection.close()  # a server does so at the first; here that would take most of the time
            connection = connect()
            answers.clear()
            good.receive(observations(count, step_type=1).SerializeToString())
            step()
            assert answers
        step()
        answers.clear()
    assert num_refused > NUM_MUTATED / 2 and num_read > NUM_MUTATED / 50
    assert engine.num_free == 0
    assert memory_mb() - begun_mb < 8


def test_mutated_requests_to_join_are_refused_in_one_line():
    engine = make_engine()
    bridge = Bridge(engine, RunDescription("run", "tests", {}, SPEC, 8), notify=lambda: None)
    generator = random.Random(1)
    whole = join_request().SerializeToString()
    num_joined = 0
    for _ in range(3000):
        try:
            request = bridge_pb2.JoinRequest.FromString(mutated(generator, whole))
        except DecodeError:
            continue
        try:
            session = bridge.join(request)
        except (Refused, UserError) as error:
            assert "\n" not in str(error)
            continue
        num_joined += 1
        bridge.open(session.id, lambda data: None).close()
    assert 0 < num_joined < 1500 and engine.num_free == 8


@pytest.fixture(scope="module")
def busy():
    """A server and a good actor that steps all the while: stub, address, and how far the actor is."""
    engine, is_done, num_steps, errors = make_engine(), threading.Event(), [0], []

    def learn():
        while not is_done.is_set():
            if (found := engine.take(0.02)) is not None:
                engine.publish(PARAMS, found.slot)

    def act(address):
        try:
            with ActorClient(address, SPEC, 2, reconnect_s=0.0) as client:
                simulator = Counting(2, num_pixels=7)
                timestep = simulator.reset(client.seeds)
                while not is_done.is_set():
                    simulator.send(client.step(timestep))
                    timestep = simulator.recv()[1]
                    num_steps[0] += 1
                    time.sleep(0.001)
        except BaseException as error:
            errors.append(error)
            raise

    with Server(
        engine, RunDescription("run", "tests", {}, SPEC, 8), ("127.0.0.1:0",), in_thread=False
    ) as server:
        (address,) = server.addresses
        threads = [threading.Thread(target=learn), threading.Thread(target=act, args=(address,))]
        for thread in threads:
            thread.start()
        with grpc.insecure_channel(address) as channel:
            yield bridge_pb2_grpc.BridgeStub(channel), address, num_steps
        is_done.set()
        for thread in threads:
            thread.join()
    assert errors == [] and server.bridge.num_actors == 0


@pytest.fixture
def undisturbed(busy):
    """The good actor gets on during a test."""
    _, _, num_steps = busy
    before = num_steps[0]
    yield
    deadline = time.monotonic() + 30
    while num_steps[0] < before + 20:
        assert time.monotonic() < deadline, "the good actor has stopped"
        time.sleep(0.005)


def session_of(stub):
    deadline = time.monotonic() + 30
    while True:  # the slots of the one before are freed in a moment
        try:
            return stub.Join(join_request())
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or time.monotonic() > deadline:  # pyright: ignore
                raise


def refusal_of(stub, messages, session=None):
    """(status, details) with which a stream of messages ends, which are answered or not before that."""
    session = session or session_of(stub).id
    with pytest.raises(grpc.RpcError) as refusal:
        list(stub.Step(iter(messages), metadata=(("session", session),), timeout=30))
    return refusal.value.code().name, str(refusal.value.details())  # pyright: ignore


FIRST = observations()
WRONG = {
    "shorter": (observations(reward=bytes(7)), "reward: expected float32[2] (8 bytes), found 7 bytes"),
    "longer": (observations(discount=bytes(9)), "discount: expected float32[2] (8 bytes), found 9 bytes"),
    "float64": (observations(reward=bytes(16)), "reward: expected float32[2] (8 bytes), found 16 bytes"),
    "huge": (observations(observation=[bytes(2**19), bytes(14)]), "found 524288 bytes"),
    "many rows": (observations(environments=range(2000)), "rows, found 8000 bytes"),
    "another's": (observations(environments=(0, 2)), "environment: expected 0 to 1, found 2"),
    "negative": (observations(environments=(0, -1)), "environment: expected 0 to 1, found -1"),
    "twice": (observations(environments=(1, 1)), "environment: expected each at most once, found 1 twice"),
    "step type": (observations(step_type=9), "step_type: expected 0, 1 or 2, found 9"),
    "MID at first": (observations(step_type=1), "FIRST (0) at the start and after a LAST"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_message_is_refused_by_name(busy, undisturbed, what):
    message, line = WRONG[what]
    code, details = refusal_of(busy[0], [message])
    assert code == "INVALID_ARGUMENT" and line in details and "\n" not in details


def test_sessions_that_are_unknown_or_another_actors(busy, undisturbed):
    stub, _, _ = busy
    session = session_of(stub).id
    outbox: queue.SimpleQueue = queue.SimpleQueue()
    outbox.put(FIRST)
    answers = stub.Step(iter(outbox.get, None), metadata=(("session", session),), timeout=30)
    assert next(answers).request == 1
    for stolen in (session, "0" * 32, "x" * 5000, " "):
        code, details = refusal_of(stub, [FIRST], stolen)
        assert code == "UNAVAILABLE" and "session: expected one that was joined, once" in details
    outbox.put(observations(2, step_type=1))
    assert next(answers).request == 2
    outbox.put(bridge_pb2.Observations(goodbye=True))
    outbox.put(None)
    assert list(answers) == []


def test_numbers_of_requests_that_repeat_or_go_backwards(busy, undisturbed):
    """They are the actor's own, and come back with the answers."""
    stub, _, _ = busy
    outbox: queue.SimpleQueue = queue.SimpleQueue()
    answers = stub.Step(iter(outbox.get, None), metadata=(("session", session_of(stub).id),), timeout=30)
    for place, number in enumerate((7, 7, 3, 2**64 - 1, 0, 2**31, 2**32)):
        outbox.put(observations(number, step_type=min(place, 1)))
        assert next(answers).request == number
    outbox.put(bridge_pb2.Observations(goodbye=True))
    outbox.put(None)
    assert list(answers) == []


def test_a_second_message_about_a_slot_before_the_answer_is_refused():
    engine = make_engine()
    bridge = Bridge(engine, RunDescription("run", "tests", {}, SPEC, 8), notify=lambda: None)
    connection = bridge.open(bridge.join(join_request()).id, lambda data: None)
    connection.receive(observations(1, (0,)).SerializeToString())
    for environments in ((0,), (1, 0)):
        again = observations(1, environments).SerializeToString()
        with pytest.raises(ProtocolError, match="slot 0: expected no message before the answer"):
            connection.receive(again)
    connection.receive(observations(1, (1,)).SerializeToString())
    assert [len(actions) for _, actions in engine.step()] == [1, 1]


def http2_frame(kind, payload, *, flags=0, stream=0, length=None):
    size = len(payload) if length is None else length
    return struct.pack("!I", size)[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RUBBISH = {
    "random": random.Random(2).randbytes(50_000),
    "nothing": b"",
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: learner\r\n\r\n" * 100,
    "TLS": bytes.fromhex("1603010200010001fc0303") + bytes(500),
    "half a preface": PREFACE[:10],
    "settings that are none": PREFACE + http2_frame(4, b"\xff" * 13),
    "a frame of 16 MB": PREFACE
    + http2_frame(4, b"")
    + http2_frame(0, b"x" * 100, stream=1, length=2**24 - 1),
    "headers that are none": PREFACE + http2_frame(4, b"") + http2_frame(1, b"\xff" * 99, flags=4, stream=1),
    "pings": PREFACE + http2_frame(4, b"") + http2_frame(6, b"12345678") * 500,
    "resets": PREFACE + http2_frame(4, b"") + http2_frame(3, b"\0\0\0\1", stream=1) * 500,
}


@pytest.mark.parametrize("what", RUBBISH)
def test_what_is_no_grpc_at_all(busy, undisturbed, what):
    host, _, port = busy[1].rpartition(":")
    connections = [socket.create_connection((host, int(port)), timeout=10) for _ in range(5)]
    for connection in connections:
        try:
            connection.sendall(RUBBISH[what])
        except OSError:
            continue  # it has hung up already
    for connection in connections:
        connection.close()


def test_bytes_that_are_no_protobuf(busy, undisturbed):
    stub, address, _ = busy
    service = "/zerocopy_seed.v1.Bridge/"
    generator = random.Random(3)
    join, first = join_request().SerializeToString(), FIRST.SerializeToString()
    known = {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}
    before_mb = memory_mb()
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(service + "Join")
        step = channel.stream_stream(service + "Step")
        for _ in range(100):
            try:
                session = bridge_pb2.Session.FromString(call(mutated(generator, join), timeout=30))
            except grpc.RpcError as error:
                assert error.code().name in known, error.code()  # pyright: ignore
                continue
            goodbye = [bridge_pb2.Observations(goodbye=True).SerializeToString()]
            list(step(iter(goodbye), metadata=(("session", session.id),), timeout=30))
        for _ in range(100):
            metadata = (("session", session_of(stub).id),)
            try:
                list(step(iter([mutated(generator, first)]), metadata=metadata, timeout=30))
            except grpc.RpcError as error:
                assert error.code().name == "INVALID_ARGUMENT", error.details()  # pyright: ignore
        with pytest.raises(grpc.RpcError) as refusal:
            list(step(iter([bytes(2**21)]), metadata=(("session", session_of(stub).id),), timeout=30))
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # pyright: ignore
        with pytest.raises(grpc.RpcError) as refusal:
            channel.unary_unary(service + "Nothing")(b"", timeout=30)
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED  # pyright: ignore
    assert memory_mb() - before_mb < 30
