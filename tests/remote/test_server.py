"""The learner's side over every transport: real gRPC on loopback and Unix sockets, and within one process."""

import asyncio
import concurrent.futures
import contextlib
import subprocess
import sys
import threading
import time

import grpc
import jax
import numpy as np
import protocol_client
import pytest
from counting_agent import PARAMS, make_counting_agent
from counting_environment import Counting

from zerocopy_envs import registry
from zerocopy_envs.errors import UserError
from zerocopy_envs.types import (
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    StepType,
    TimeStep,
)
from zerocopy_seed.loops.local_actors import LocalActors
from zerocopy_seed.remote import bridge_pb2, bridge_pb2_grpc
from zerocopy_seed.remote.actor import Actor
from zerocopy_seed.remote.bridge import Bridge, RunDescription
from zerocopy_seed.remote.client import ActorClient
from zerocopy_seed.remote.drivers import LoopDriver
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.errors import RunEnded
from zerocopy_seed.remote.server import Server
from zerocopy_seed.remote.specs import spec_to_message
from zerocopy_seed.remote.transport import GrpcTransport, InProcessTransport

COUNTING = "counting_environment:Counting"
SPEC = Counting().spec


def make_engine(spec=SPEC, num_slots=8, length=3):
    return Engine(
        make_counting_agent(num_actions=3),
        spec,
        PARAMS,
        seed=0,
        num_slots=num_slots,
        unroll_length=length,
        max_policy_lag=np.inf,
        max_batch=256,
    )


def describe(spec, environment=COUNTING, num_environments=4):
    return RunDescription("run", environment, {}, spec, num_environments)


@contextlib.contextmanager
def serving(engine, addresses=("127.0.0.1:0",), *, spec=SPEC, in_thread=False, access=None):
    """A server with a learner that takes what comes; gives the server and the trajectories."""
    taken, is_done = [], threading.Event()

    def learn():
        while not is_done.is_set():
            if (found := engine.take(0.02)) is not None:
                # a copy, since the next one is written over it
                taken.append(found._replace(trajectory=jax.tree.map(np.array, found.trajectory)))
                engine.publish(PARAMS, found.slot)

    learner = threading.Thread(target=learn)
    options = {} if access is None else {"access": access}
    with Server(engine, describe(spec), addresses, in_thread=in_thread, **options) as server:
        learner.start()
        try:
            yield server, taken
        finally:
            is_done.set()
            learner.join()


async def act_until(make_transport, condition):
    actor = Actor(make_transport, "there", env=COUNTING, report=lambda line: None, reconnect_s=0.0)
    task = asyncio.ensure_future(actor.run())
    async with asyncio.timeout(60):
        while not condition() and not task.done():
            await asyncio.sleep(0.005)
    actor.leave()
    await task


def require_whole_streams(taken):
    """Every unroll is an actor's own, whole and in order: the environment counts its steps."""
    assert taken
    for found in taken:
        timestep = found.trajectory.timestep
        count = np.asarray(timestep.observation["count"])[..., : len(found.slot), :]
        age, seed = count[..., 1], count[..., 0]
        np.testing.assert_array_equal(age[1:], (age[:-1] + 1) % 5)
        np.testing.assert_array_equal(seed[1:], seed[:-1])
        step_type = np.asarray(timestep.step_type)[:, : len(found.slot)]
        expected = np.select([age == 0, age == 4], [StepType.FIRST, StepType.LAST], StepType.MID)
        np.testing.assert_array_equal(step_type, expected)


@pytest.mark.parametrize("kind", ["tcp", "unix", "thread"])
def test_an_actor_over_grpc(kind, tmp_path):
    address = f"unix:{tmp_path}/bridge" if kind == "unix" else "127.0.0.1:0"
    with serving(make_engine(), (address,), in_thread=kind == "thread") as (server, taken):
        (where,) = server.addresses
        asyncio.run(act_until(lambda: GrpcTransport(where), lambda: len(taken) >= 3))
    require_whole_streams(taken)
    assert server.bridge.num_lost == 0


def test_an_actor_within_the_process():
    engine = make_engine()
    taken = []

    async def main():
        driver = LoopDriver(engine, asyncio.get_running_loop(), failed=lambda error: pytest.fail(str(error)))
        engine.wake = driver.notify
        bridge = Bridge(engine, describe(SPEC), driver.notify)

        def learned():
            if (found := engine.take(0.0)) is not None:
                taken.append(found._replace(trajectory=jax.tree.map(np.array, found.trajectory)))
                engine.publish(PARAMS, found.slot)
            return len(taken) >= 3

        await act_until(lambda: InProcessTransport(bridge), learned)
        assert bridge.num_actors == 0

    asyncio.run(main())
    require_whole_streams(taken)


def test_an_actor_written_from_the_page_alone():
    with serving(make_engine()) as (server, _):
        assert len(protocol_client.play(server.addresses[0], num_environments=3, num_steps=12)) == 24
    assert server.bridge.num_lost == 0


def join(stub, **changes):
    request = bridge_pb2.JoinRequest(
        version=1, run_id="run", spec=spec_to_message(Counting().spec), num_environments=2
    )
    for name, value in changes.items():
        if name == "spec":
            request.spec.CopyFrom(spec_to_message(value))
        else:
            setattr(request, name, value)
    return stub.Join(request)


@pytest.mark.parametrize(
    ("changes", "code", "line"),
    [
        ({"version": 2}, "FAILED_PRECONDITION", "version: expected 1, found 2"),
        ({"run_id": "another"}, "FAILED_PRECONDITION", "run_id: expected run, found another"),
        ({"num_environments": 0}, "INVALID_ARGUMENT", "num_environments: expected 1 to 8"),
        ({"num_environments": 9}, "INVALID_ARGUMENT", "num_environments: expected 1 to 8"),
        (
            {"spec": EnvironmentSpec({"count": ArraySpec((3,), np.float32)}, DiscreteAction(3))},
            "FAILED_PRECONDITION",
            "observation.count",
        ),
        (
            {"spec": EnvironmentSpec({"count": ArraySpec((2,), np.float32)}, DiscreteAction(4))},
            "FAILED_PRECONDITION",
            "action",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(served, changes, code, line):
    with pytest.raises(grpc.RpcError) as refusal:
        join(served, **changes)
    assert refusal.value.code().name == code
    assert line in refusal.value.details()
    assert "\n" not in str(refusal.value.details())


@pytest.fixture(scope="module")
def served():
    with serving(make_engine()) as (server, _), grpc.insecure_channel(server.addresses[0]) as channel:
        yield bridge_pb2_grpc.BridgeStub(channel)


def test_a_full_house_says_so_and_a_goodbye_makes_room(served):
    session = join(served, num_environments=8)
    with pytest.raises(grpc.RpcError) as refusal:
        join(served, num_environments=1)
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    goodbye = iter([bridge_pb2.Observations(goodbye=True)])
    assert list(served.Step(goodbye, metadata=(("session", session.id),))) == []
    assert list(join(served, num_environments=8).slots) == list(range(8))


def test_health_is_served(served):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with serving(make_engine()) as (server, _), grpc.insecure_channel(server.addresses[0]) as channel:
        request = health_pb2.HealthCheckRequest(service="zerocopy_seed.v1.Bridge")
        answer = health_pb2_grpc.HealthStub(channel).Check(request)  # pyright: ignore
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (bridge_pb2.Observations(environment=b"\0" * 4), "observation: expected 1 arrays, found 0"),
        (
            bridge_pb2.Observations(
                environment=b"\0" * 4,
                step_type=b"\1",
                reward=b"\0" * 4,
                discount=np.float32(1).tobytes(),
                observation=[b"\0" * 8],
            ),
            "FIRST (0) at the start and after a LAST",
        ),
    ],
)
def test_a_wrong_message_ends_its_own_stream_only(message, line):
    with serving(make_engine()) as (server, _), grpc.insecure_channel(server.addresses[0]) as channel:
        stub = bridge_pb2_grpc.BridgeStub(channel)
        with ActorClient(server.addresses[0], SPEC, 2) as client:
            simulator = Counting(2)
            client.step(simulator.reset(client.seeds))
            session = join(stub)
            with pytest.raises(grpc.RpcError) as refusal:
                list(stub.Step(iter([message]), metadata=(("session", session.id),)))
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert line in refusal.value.details()
            simulator.send(client.step(simulator.reset(client.seeds)))


def test_two_actors_see_different_episodes():
    with serving(make_engine(num_slots=4)) as (server, _):
        address = server.addresses[0]
        with ActorClient(address, SPEC, 2) as one, ActorClient(address, SPEC, 2) as other:
            assert len({*one.seeds, *other.seeds}) == 4


def test_a_large_message_goes_both_ways():
    size = 1_612_800
    spec = EnvironmentSpec(ArraySpec((size,), np.float32), BoundedAction((size,)))
    agent = make_counting_agent()

    def act(params, state, timestep, mode):
        _, output, state = agent.act(params, state, timestep, mode)
        return timestep.observation / 2, output, state

    engine = Engine(
        agent._replace(act=act),
        spec,
        PARAMS,
        seed=0,
        num_slots=1,
        unroll_length=1,
        max_policy_lag=np.inf,
        max_batch=8,
    )
    observation = np.linspace(-1, 1, size, dtype=np.float32)[None]
    timestep = TimeStep(np.zeros(1, np.int8), np.zeros(1, np.float32), np.ones(1, np.float32), observation)
    with serving(engine, spec=spec) as (server, _), ActorClient(server.addresses[0], spec, 1) as client:
        np.testing.assert_array_equal(client.step(timestep), observation / 2)


def test_pong_is_played(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    game = registry.make("ale:Pong", num_envs=1)
    game.close()
    engine = Engine(
        make_counting_agent(num_actions=6),
        game.spec,
        PARAMS,
        seed=0,
        num_slots=4,
        unroll_length=25,
        max_policy_lag=np.inf,
        max_batch=64,
    )
    taken = []
    server = Server(engine, describe(game.spec, "ale:Pong"), ("127.0.0.1:0",), in_thread=False)
    with server, LocalActors(server.addresses[0], [3, 1], env="ale:Pong", warn=pytest.fail):
        for _ in range(4):
            found = engine.take(60.0)
            assert found is not None and len(found.slot) == 4
            taken.append(found)
    trajectory = jax.tree.map(np.asarray, taken[-1].trajectory)
    assert trajectory.timestep.observation.shape == (26, 4, 84, 84)
    assert set(np.unique(trajectory.timestep.reward)) <= {-1.0, 0.0, 1.0}
    moved = (trajectory.timestep.observation[1:] != trajectory.timestep.observation[:-1]).any((0, 2, 3))
    assert moved.all()


def test_few_actors_with_a_large_batch_advance():
    engine = make_engine(num_slots=64, length=2)
    with serving(engine) as (server, taken), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ActorClient(server.addresses[0], SPEC, 1)) for _ in range(3)]
        simulators = [Counting(1) for _ in clients]
        timesteps = [one.reset(client.seeds) for one, client in zip(simulators, clients, strict=True)]
        while not taken:
            for place, (one, client) in enumerate(zip(simulators, clients, strict=True)):
                one.send(client.step(timesteps[place]))
                timesteps[place] = one.recv()[1]
    assert len(taken[0].slot) == 64


def test_a_second_learner_on_an_address_is_told_which(tmp_path):
    for address in ("127.0.0.1:0", f"unix:{tmp_path}/bridge"):
        with Server(make_engine(), describe(SPEC), (address,), in_thread=False) as first:
            (taken,) = first.addresses
            second = Server(make_engine(), describe(SPEC), (taken,), in_thread=False)
            with pytest.raises(UserError) as refusal, second:
                pytest.fail("two servers share an address")
            assert taken in str(refusal.value)
            with ActorClient(taken, SPEC, 1) as client:
                client.step(Counting(1).reset(client.seeds))


def test_the_end_of_a_run_is_said_to_actors():
    def simulate(address):
        simulator = Counting(1)
        with ActorClient(address, SPEC, 1) as client, pytest.raises(RunEnded):
            timestep = simulator.reset(client.seeds)
            while True:
                simulator.send(client.step(timestep))
                timestep = simulator.recv()[1]

    with serving(make_engine()) as (server, taken), concurrent.futures.ThreadPoolExecutor(1) as pool:
        simulation = pool.submit(simulate, server.addresses[0])
        while not taken:
            time.sleep(0.01)
        server.is_run_over = True
        server.__exit__()
        simulation.result(timeout=30)
    assert server.bridge.num_lost == 0


def test_a_simulator_that_is_busy_when_the_run_ends_hears_of_it(monkeypatch):
    monkeypatch.setattr("zerocopy_seed.remote.server._GOODBYE_S", 0.1)
    with serving(make_engine()) as (server, _):
        client = ActorClient(server.addresses[0], SPEC, 1, reconnect_s=0.5)
        timestep = Counting(1).reset(client.seeds)
        client.step(timestep)
        server.is_run_over = True
        server.__exit__()
    for _ in range(2):
        with pytest.raises(RunEnded):
            client.step(timestep)
    client.close()
    assert server.bridge.num_lost == 0


def test_an_actor_in_a_long_step_when_the_run_ends_hears_of_it(monkeypatch):
    monkeypatch.setattr("zerocopy_seed.remote.server._GOODBYE_S", 0.1)
    engine, lines = make_engine(), []
    run = RunDescription("run", COUNTING, {"step_s": 0.8}, SPEC, 1)
    with Server(engine, run, ("127.0.0.1:0",), in_thread=False) as server:

        def end():
            while not engine.figures()["inference_batch"]:
                time.sleep(0.01)
            server.is_run_over = True
            server.__exit__()

        (address,) = server.addresses
        actor = Actor(
            lambda: GrpcTransport(address), "there", env=COUNTING, report=lines.append, reconnect_s=0.0
        )
        ending = threading.Thread(target=end)
        ending.start()
        asyncio.run(actor.run())
        ending.join()
    assert lines[-1] == "the learner at there has ended the run"


def test_a_killed_actor_frees_its_slots_and_is_counted():
    program = (
        "import sys, time, numpy as np; from zerocopy_seed.remote.client import ActorClient;"
        "from counting_environment import Counting; simulator = Counting(8);"
        "client = ActorClient(sys.argv[1], simulator.spec, 8);"
        "client.step(simulator.reset(client.seeds)); print('acts', flush=True); time.sleep(60)"
    )
    engine = make_engine()
    with serving(engine) as (server, _):
        command = [sys.executable, "-c", program, server.addresses[0]]
        path = ":".join(sys.path)
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONPATH": path}) as actor:
            assert actor.stdout is not None
            assert actor.stdout.readline() == b"acts\n"
            assert engine.num_free == 0
            actor.kill()
        with ActorClient(server.addresses[0], SPEC, 8) as client:
            client.step(Counting(8).reset(client.seeds))
        assert server.bridge.num_lost == 1
        assert engine.figures()["dropped_steps"] >= 8
