"""The actor against a small server of the generated code, in this process and as a process of its own."""

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest
from counting_environment import Counting
from echo_server import EchoServer

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import ArraySpec, DiscreteAction, EnvironmentSpec
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.actor import Actor
from zerocopy_seed.remote.errors import Refused, Unavailable
from zerocopy_seed.remote.halves import EnvironmentFailed, Halves
from zerocopy_seed.remote.transport import GrpcTransport, InProcessTransport

ROOT = pathlib.Path(__file__).parent.parent.parent
COUNTING = "counting_environment:Counting"
SPEC = Counting().spec


def serve(**options) -> EchoServer:
    settings = options.pop("settings", {})
    return EchoServer(Counting(**settings).spec, environment=COUNTING, settings=settings, **options)


def run(server: EchoServer, until=None, **options) -> list[str]:
    """Runs an actor until the condition on the server holds; the lines that it reported."""
    lines: list[str] = []

    async def act() -> None:
        actor = Actor(
            lambda: GrpcTransport(server.address),
            server.address,
            report=lines.append,
            **{"reconnect_s": 0.0, "env": COUNTING, **options},
        )
        task = asyncio.ensure_future(actor.run())
        while until is not None and not task.done() and not until(server):
            await asyncio.sleep(0.005)
        if not task.done() and until is not None:
            actor.leave()
        await task

    asyncio.run(asyncio.wait_for(act(), 30))
    return lines


def rows(messages: list[bridge_pb2.Observations], place: int) -> np.ndarray:
    """[T, 5] of one environment: step type, reward, discount, seed, age."""
    found = []
    for message in messages:
        environment = np.frombuffer(message.environment, np.int32)
        count = np.frombuffer(message.observation[0], np.float32).reshape(-1, 2)
        columns = [
            np.frombuffer(message.step_type, np.int8),
            np.frombuffer(message.reward, np.float32),
            np.frombuffer(message.discount, np.float32),
        ]
        for row in np.nonzero(environment == place)[0]:
            found.append([*(column[row] for column in columns), *count[row]])
    return np.array(found)


def episode(seed: int) -> np.ndarray:
    return np.array([[0, 0, 1, seed, 0], *([1, age, 1, seed, age] for age in (1, 2, 3)), [2, 4, 0, seed, 4]])


@pytest.mark.parametrize(("settings", "num_envs"), [({}, 5), ({"batch": 2}, 5), ({}, 1)])
def test_every_environment_takes_its_steps_in_order(settings, num_envs):
    with serve(settings=settings, num_environments=num_envs) as server:
        lines = run(server, lambda server: server.num_messages > 60)
    assert lines == [
        f"{COUNTING}: {num_envs} environment{'s' * (num_envs > 1)} for the learner at {server.address}"
    ]
    assert [join.num_environments for join in server.joins] == [num_envs]
    assert server.goodbyes == [True]
    (messages,) = server.messages
    assert len({message.request for message in messages}) == len(messages)
    for place in range(num_envs):
        found = rows(messages, place)
        assert len(found) > 5
        assert np.array_equal(found, np.tile(episode(7 + place), (len(found) // 5 + 1, 1))[: len(found)])


def test_one_half_steps_while_the_other_waits():
    def of_second_half(message: bridge_pb2.Observations) -> bool:
        return np.frombuffer(message.environment, np.int32)[0] == 3

    with serve(num_environments=5, may_answer=of_second_half) as server:
        run(server, lambda server: server.num_messages > 20)
    ((first, *others),) = server.messages
    assert np.frombuffer(first.environment, np.int32).tolist() == [0, 1, 2]
    assert all(np.frombuffer(message.environment, np.int32).tolist() == [3, 4] for message in others)


def test_leaving_while_the_learner_withholds_its_answers():
    with serve(may_answer=lambda message: False) as server:
        began = time.monotonic()
        run(server, lambda server: server.num_messages > 0)
        assert time.monotonic() - began < 4


def test_the_end_of_the_run_ends_the_actor():
    with serve() as server:

        def end(server: EchoServer) -> bool:
            server.ended = server.ended or server.num_messages > 5
            return False

        lines = run(server, end)
    assert lines[1:] == [f"the learner at {server.address} has ended the run"]


def test_a_lost_learner_is_found_again_and_environments_begin_anew(tmp_path):
    address = f"unix:{tmp_path}/learner"
    first, second = serve(address=address), serve(address=address)
    lines: list[str] = []

    async def act() -> None:
        actor = Actor(
            lambda: GrpcTransport(address), address, env=COUNTING, reconnect_s=30, report=lines.append
        )
        task = asyncio.ensure_future(actor.run())
        await asyncio.sleep(0.2)  # the learner is not there yet
        for server in (first, second):
            await asyncio.to_thread(server.__enter__)
            await asyncio.to_thread(server.wait_until, lambda server: server.num_messages > 6)
            if server is first:
                await asyncio.to_thread(server.__exit__)
        actor.leave()
        await task
        await asyncio.to_thread(second.__exit__)

    asyncio.run(asyncio.wait_for(act(), 30))
    assert [line.split(":")[0] for line in lines] == ["nothing to do yet at unix", COUNTING.split(":")[0]] * 2
    for server in (first, second):
        assert np.array_equal(rows(server.messages[0], 0)[:3], episode(7)[:3])
    assert (first.goodbyes, second.goodbyes) == ([False], [True])


def test_a_learner_that_does_not_come_back_is_given_up():
    with serve() as server:
        pass
    with pytest.raises(Unavailable, match=f"nothing to do at {server.address}: "):
        run(server, reconnect_s=0.3)


@pytest.mark.parametrize("call", ["Describe", "Join", "Step"])
def test_refusals_reach_the_user(call):
    with (
        serve(refuse={call: (grpc.StatusCode.FAILED_PRECONDITION, "version: expected 2, found 1")}) as server,
        pytest.raises(UserError, match=r"the learner at .* refuses: version: expected 2, found 1"),
    ):
        run(
            server, reconnect_s=10
        )  # gRPC may lose the status of a stream that is refused while it is written


def test_a_learner_without_room_is_asked_again():
    with serve(refuse={"Join": (grpc.StatusCode.RESOURCE_EXHAUSTED, "all slots are taken")}) as server:

        def until(server: EchoServer) -> bool:
            if len(server.joins) > 2:
                server.refuse = {}
            return server.num_messages > 3

        lines = run(server, until, reconnect_s=30)
    assert lines[0] == f"nothing to do yet at {server.address}: all slots are taken; trying again"


def test_messages_beyond_the_servers_limit_end_in_one_line():
    with (
        serve(max_message_bytes=64) as server,
        pytest.raises(UserError, match="refuses: .*larger than max"),
    ):
        run(server, reconnect_s=10)


def test_six_megabytes_both_ways():
    # 6,451,200 bytes up in the observation, and down in an action.
    with serve(settings={"num_pixels": 806_400}, num_environments=16) as server:
        run(server, lambda server: server.num_messages > 3)
    assert len(server.messages[0][0].observation[1]) == 6_451_200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fail_after": 3}, ["a step to run, found RuntimeError: the simulator broke (", "counting_environ"]),
        (
            {"lie": True},
            [f"environment {COUNTING!r}: observation.count: expected float32[2, 2], found float64"],
        ),
    ],
)
def test_a_failed_environment_says_no_goodbye(settings, words):
    with serve(settings=settings) as server:
        with pytest.raises(EnvironmentFailed) as caught:
            run(server)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        if "fail_after" in settings:
            server.wait_until(lambda server: server.goodbyes == [False])


def test_environments_that_cannot_be_had_are_named():
    with EchoServer(SPEC, environment="counting_environment:spec_alone") as server:
        with pytest.raises(UserError, match="ActorClient"):
            run(server, env="counting_environment:spec_alone")
        with pytest.raises(UserError, match="did you mean Counting"):
            run(server, env="counting_environment:Countin")


@pytest.mark.parametrize("name", ["module_of_the_learner:make", "gymnasium:module_of_the_learner:Maze-v0"])
def test_a_module_that_only_the_learner_names_is_not_imported(tmp_path, monkeypatch, name):
    (tmp_path / "module_of_the_learner.py").write_text("raise SystemExit('the module has run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with EchoServer(SPEC, environment=name) as server:
        with pytest.raises(UserError) as refusal:
            run(server, env=None)
        assert str(refusal.value) == (
            f"environment '{name}': expected one of a registered suite, since the learner names it, found "
            f"a module, whose code would be run here; --env {name} if it is yours"
        )
        with pytest.raises(UserError, match="the module has run"):
            run(server, env=name)


@pytest.mark.parametrize(
    "value", ["/etc/passwd", "models/ant.xml", "..", "~", "C:\\\\x", "x" * 101, ["a", {"b": "/c"}], {"/a": 1}]
)
def test_a_file_is_not_opened_at_the_learners_word_alone(value):
    name = "gymnasium:CartPole-v1"
    run = bridge_pb2.Run(environment=name, settings=json.dumps({"xml_file": value}))
    with pytest.raises(
        UserError, match="setting 'xml_file': expected numbers, .*; --env gymnasium:CartPole-v1 if"
    ):
        Halves().fit(run, 1, None)
    with pytest.raises(UserError, match="setting 'xml_file': expected a setting of this environment"):
        Halves().fit(run, 1, name)


@pytest.mark.parametrize("settings", [{"max_episode_steps": 3}, {"sutton_barto_reward": True}])
def test_plain_settings_are_the_learners_to_give(settings):
    halves = Halves()
    run = bridge_pb2.Run(environment="gymnasium:CartPole-v1", settings=json.dumps(settings))
    assert sum(half.num_envs for half in halves.fit(run, 3, None)) == 3
    halves.close()


def test_very_many_environments_are_the_users_to_ask_for():
    run = bridge_pb2.Run(environment=COUNTING, num_environments=4097)
    with pytest.raises(
        UserError, match="expected at most 4,096 where it alone says so, found 4,097; --num-envs"
    ):
        Halves().fit(run, None, COUNTING)
    halves = Halves()
    assert sum(half.num_envs for half in halves.fit(run, 4097, COUNTING)) == 4097
    halves.close()


def test_another_environment_than_the_learners(monkeypatch):
    with serve(settings={"num_pixels": 3}) as server:
        run(server, lambda server: server.num_messages > 3, env="counting_environment:Another", num_envs=2)
    (join,) = server.joins
    assert [array.path for array in join.spec.observation] == ["observation.count"]
    assert join.num_environments == 2


class _Learner:
    """The other side of the in-process transport."""

    def __init__(self):
        self.closed = 0

    def describe(self, request):
        return bridge_pb2.Run(environment=COUNTING, run_id="run", num_environments=2)

    def join(self, request):
        if request.num_environments == 9:
            raise Refused("INVALID_ARGUMENT", "num_environments: expected at most 8, found 9")
        return bridge_pb2.Session(id="session", slots=[0, 1], seeds=[1, 2])

    def open(self, session_id, write):
        learner = self

        class Connection:
            num_messages = 0

            def receive(self, data):
                message = bridge_pb2.Observations.FromString(data)
                self.num_messages += 1
                if self.num_messages > 20:
                    write(bridge_pb2.Actions(goodbye=True).SerializeToString())
                else:
                    zeros = bytes(len(message.environment))
                    write(bridge_pb2.Actions(request=message.request, action=zeros).SerializeToString())

            def close(self):
                learner.closed += 1

        return Connection()


def test_a_learner_in_the_same_process():
    learner = _Learner()
    asyncio.run(Actor(lambda: InProcessTransport(learner), "here", env=COUNTING).run())
    assert learner.closed == 1
    with pytest.raises(UserError, match="the learner refuses: num_environments: expected at most 8"):
        asyncio.run(Actor(lambda: InProcessTransport(learner), "here", env=COUNTING, num_envs=9).run())


def in_tree(**environment: str) -> dict[str, str]:
    """Environment variables of a process that finds this tree's packages and these tests' environments."""
    folders = [ROOT, ROOT / "envs", pathlib.Path(__file__).parent]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **environment}


def process(address: str, *words: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "zerocopy_seed.cli", "actor", address, *words],
        env=in_tree(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_say_goodbye_and_proxies_do_not_come_between(number):
    proxies = {name: "http://192.0.2.1:9" for name in ("http_proxy", "https_proxy", "grpc_proxy")}
    with serve() as server:
        actor = process(server.address, "--env", COUNTING, **proxies)
        server.wait_until(lambda server: server.num_messages > 3)
        actor.send_signal(number)
        out, err = actor.communicate(timeout=10)
    assert (actor.returncode, err) == (0, "")
    assert out.splitlines() == [f"{COUNTING}: 4 environments for the learner at {server.address}"]
    assert server.goodbyes == [True]


def test_exit_codes_and_lines_of_the_command():
    with serve(settings={"fail_after": 2}) as server:
        failing = process(server.address, "--env", COUNTING)
        nobody = process("127.0.0.1:1", "--reconnect-s", "0")
        malformed = process("127.0.0.1")
        ends = [(actor, *actor.communicate(timeout=20)) for actor in (failing, nobody, malformed)]
    codes = [actor.returncode for actor, _, _ in ends]
    lines = [err for _, _, err in ends]
    assert codes == [1, 1, 2], lines
    assert all(err.count("\n") == 1 for err in lines), lines
    assert "the simulator broke" in lines[0]
    assert lines[1].startswith("nothing to do at 127.0.0.1:1: ")
    assert lines[2] == "address '127.0.0.1': expected HOST:PORT, [IPv6]:PORT or unix:PATH, found no port\n"


def test_an_actor_ends_with_the_process_it_belongs_to():
    program = (
        "import os, subprocess, sys\n"
        "actor = subprocess.Popen([sys.executable, '-m', 'zerocopy_seed.cli', 'actor', '127.0.0.1:1',\n"
        "    '--reconnect-s', 'inf', '--parent-pid', str(os.getpid())], stdout=subprocess.PIPE, text=True)\n"
        "actor.stdout.readline()\n"
        "print(actor.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.run([sys.executable, "-c", program], env=in_tree(), capture_output=True, text=True)
    pid = int(parent.stdout)
    deadline = time.monotonic() + 10
    while _is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_actor_starts_at_once():
    """In seconds of the processor, so that a busy machine does not count."""
    program = (
        "import sys, time, zerocopy_seed.cli, zerocopy_seed.remote.actor, zerocopy_seed.remote.client\n"
        "heavy = ('jax', 'gymnasium', 'ale_py', 'matplotlib', 'scipy')\n"
        "print([name for name in heavy if name in sys.modules], time.process_time() < 1)"
    )
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, env=in_tree(), capture_output=True, text=True)
    assert out.stdout.strip() == "[] True", out


def test_long_steps_bring_no_goaway():
    """Keepalive every 0.3 s against steps of 1.2 s: both ends answer pings while Python is busy."""
    pings = [
        ("grpc.keepalive_time_ms", 300),
        ("grpc.keepalive_timeout_ms", 1000),
        ("grpc.http2.ping_timeout_ms", 1000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ]
    with serve(settings={"step_s": 1.2}, num_environments=1, options=pings) as server:
        run(server, lambda server: server.num_messages > 1)
    assert server.goodbyes == [True]


def test_specs_that_differ_are_for_the_learner_to_refuse():
    other = EnvironmentSpec(ArraySpec((3,), np.float32), DiscreteAction(3))
    with EchoServer(other, environment=COUNTING) as server:
        run(server, lambda server: server.num_messages > 3)
    assert [array.path for array in server.joins[0].spec.observation] == ["observation.count"]
