"""Simulators that own their loop; and JAX environments behind the host contract."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from counting_environment import Counting
from echo_server import EchoServer

import zerocopy_envs
from zerocopy_envs.catch import Catch
from zerocopy_envs.errors import UserError
from zerocopy_envs.host_adapter import HostedEnvironment
from zerocopy_envs.testing import check_environment
from zerocopy_envs.types import StepType, TimeStep
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.remote.client import ActorClient
from zerocopy_seed.remote.errors import ProtocolError, RunEnded

ROOT = pathlib.Path(__file__).parent.parent.parent
SPEC = Counting().spec


def test_a_step_asks_for_actions_and_the_end_says_goodbye():
    simulator = Counting(3)
    with EchoServer(SPEC, settings={"speed": 2}) as server:
        with ActorClient(server.address, SPEC, 3) as client:
            assert (client.seeds, client.run_id, client.settings) == ([7, 8, 9], "run", '{"speed": 2}')
            timestep = simulator.reset(client.seeds)
            for _ in range(7):
                actions = client.step(timestep)
                assert actions.dtype == np.int32 and np.array_equal(actions, [0, 0, 0])
                simulator.send(actions)
                timestep = simulator.recv()[1]
        with pytest.raises(UserError, match="found one that is closed"):
            client.step(timestep)
        client.close()
    (messages,) = server.messages
    ages = [np.frombuffer(message.observation[0], np.float32)[1] for message in messages]
    assert ages == [0, 1, 2, 3, 4, 0, 1]
    assert server.goodbyes == [True]


def test_other_dtypes_of_flags_and_lists_are_taken_wrong_observations_are_not():
    with EchoServer(SPEC) as server, ActorClient(server.address, SPEC, 1) as client:
        count = np.zeros((1, 2), np.float32)
        client.step(TimeStep([0], [0.0], np.ones(1), {"count": count}))
        with pytest.raises(ProtocolError, match=r"observation.count: expected float32\[1, 2\]"):
            client.step(TimeStep([1], [0.0], [1.0], {"count": count[:, :1]}))
        client.step(TimeStep([1], [0.0], [1.0], {"count": count}))
    assert server.num_messages == 2


def test_a_lost_connection_cuts_episodes_and_nothing_else(tmp_path):
    address = f"unix:{tmp_path}/learner"
    simulator = Counting(2)
    first, second = EchoServer(SPEC, address), EchoServer(SPEC, address)
    with first:
        client = ActorClient(address, SPEC, 2, reconnect_s=20)
        timestep = simulator.reset(client.seeds)
        for _ in range(3):
            simulator.send(client.step(timestep))
            timestep = simulator.recv()[1]
    later = threading.Timer(0.3, second.__enter__)
    later.start()
    simulator.send(client.step(timestep))
    client.step(simulator.recv()[1])
    assert client.num_reconnects == 1
    client.close()
    second.__exit__()
    again, after = second.messages[0]
    assert np.frombuffer(again.step_type, np.int8).tolist() == [StepType.FIRST] * 2
    assert np.frombuffer(again.reward, np.float32).tolist() == [0, 0]
    assert np.frombuffer(again.observation[0], np.float32).tolist() == [7, 3, 8, 3]
    assert np.frombuffer(after.step_type, np.int8).tolist() == [StepType.LAST] * 2
    assert (first.goodbyes, second.goodbyes) == ([False], [True])


def test_the_end_of_the_run_and_a_learner_that_is_not_there():
    with EchoServer(SPEC) as server, ActorClient(server.address, SPEC, 1) as client:
        server.ended = True
        with pytest.raises(RunEnded, match="has ended the run"):
            client.step(Counting(1).reset([0]))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"the learner at .*: expected an answer within 0.2 s, found .*"):
        ActorClient(server.address, SPEC, 1, reconnect_s=0.2)
    assert time.monotonic() - began < 5


def test_an_interrupted_step_ends_with_a_goodbye():
    timestep = Counting(1).reset([0])
    with EchoServer(SPEC, may_answer=lambda message: False) as server:
        with pytest.raises(KeyboardInterrupt), ActorClient(server.address, SPEC, 1) as client:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            client.step(timestep)
        server.wait_until(lambda server: server.goodbyes == [True])
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        ActorClient(server.address, SPEC, 1)


def test_the_example_runs():
    with EchoServer(SPEC) as server:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "envs")])}
        command = [sys.executable, str(ROOT / "examples" / "own_loop.py"), server.address, "120"]
        subprocess.run(command, env=environment, check=True, timeout=30)
    (messages,) = server.messages
    kinds = "".join(str(message.step_type[0]) for message in messages)
    assert kinds == ("0" + "1" * 49 + "2") * 2 + "0" + "1" * 17 and server.goodbyes == [True]


def test_a_spec_alone_is_a_kind_of_environment():
    name = "counting_environment:spec_alone"
    made = zerocopy_envs.make(name)
    assert zerocopy_envs.environment_kind(made) == "spec" and made == SPEC
    check_environment(name)


def test_a_jax_environment_behind_the_host_contract_plays_the_episodes_of_its_keys():
    """Seeds are threefry keys, so that an actor's episodes are those of the device."""
    environment = Vectorized(Catch(rows=4))
    hosted = HostedEnvironment(environment, 3)
    check_environment(hosted, num_steps=20)
    keys = jax.random.split(jax.random.key(5, impl="threefry2x32"), 3)
    words = np.asarray(jax.random.key_data(keys)).astype(np.uint64)
    found = [hosted.reset([int(high << np.uint64(32) | low) for high, low in words])]
    state, timestep = jax.jit(environment.reset)(keys)
    wanted = [timestep]
    for t in range(9):
        action = np.full(3, t % 3, np.int32)
        hosted.send(action)
        slots, timestep = hosted.recv()
        found.append(timestep)
        assert slots.tolist() == [0, 1, 2]
        state, timestep = jax.jit(environment.step)(state, action)
        wanted.append(timestep)
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert isinstance(a, np.ndarray) and np.array_equal(a, b)
    hosted.close()


@pytest.mark.slow  # the parity test shows it too
def test_an_actor_can_run_a_jax_environment():
    import asyncio

    from zerocopy_seed.remote.actor import Actor
    from zerocopy_seed.remote.transport import GrpcTransport

    with EchoServer(Catch(rows=4).spec, environment="zerocopy:Catch", settings={"rows": 4}) as server:

        async def act() -> None:
            actor = Actor(lambda: GrpcTransport(server.address), server.address, reconnect_s=0)
            task = asyncio.ensure_future(actor.run())
            while server.num_messages < 10 and not task.done():
                await asyncio.sleep(0.005)
            actor.leave()
            await task

        asyncio.run(asyncio.wait_for(act(), 60))
    assert server.goodbyes == [True]
