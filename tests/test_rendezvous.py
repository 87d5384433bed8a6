"""Where hosts meet, by flag or environment, and who speaks for a process that can no longer."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from zerocopy_envs.errors import UserError
from zerocopy_seed.rendezvous import Hosts, parse_hosts

JAX = {"JAX_COORDINATOR_ADDRESS": "gpu0:8476", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
SLURM = {
    "SLURM_JOB_ID": "5000",
    "SLURM_STEP_NODELIST": "gpu[07-09,12],big1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_PROCID": "2",
}


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("gpu0:8476,2,1", {}, Hosts("gpu0:8476", 2, 1)),
        ("[::1]:8476,2,0", JAX, Hosts("[::1]:8476", 2, 0)),
        ("auto", JAX, Hosts("gpu0:8476", 4, 3)),
        ("auto", SLURM, Hosts("gpu07:62344", 5, 2)),  # 61440 + 5000 % 4096
        ("auto", SLURM | {"SLURM_STEP_NODELIST": "gpu7"}, Hosts("gpu7:62344", 5, 2)),
        ("auto", SLURM | {"SLURM_STEP_NODELIST": "gpu-a,gpu-b"}, Hosts("gpu-a:62344", 5, 2)),
        ("auto", SLURM | {"SLURM_STEP_NODELIST": "rack[3,5-7]"}, Hosts("rack3:62344", 5, 2)),
        ("auto", SLURM | JAX, Hosts("gpu0:8476", 4, 3)),  # what was written down goes first
    ],
)
def test_where_hosts_meet(text, environment, expected):
    assert parse_hosts(text, environment) == expected


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("gpu0:8476", {}, "--hosts: expected auto or ADDRESS:PORT,NUM_HOSTS,INDEX, found 'gpu0:8476'"),
        ("gpu0:8476,two,0", {}, "--hosts, NUM_HOSTS: expected digits, found 'two'"),
        ("gpu0:8476,2,-1", {}, "--hosts, INDEX: expected digits, found '-1'"),
        ("gpu0:8476,0,0", {}, "--hosts, NUM_HOSTS: expected at least 1, found 0"),
        ("gpu0:8476,2,2", {}, "--hosts, INDEX: expected less than NUM_HOSTS, 2, found 2"),
        ("gpu0,2,0", {}, "address 'gpu0': expected HOST:PORT"),
        ("unix:/tmp/x,2,0", {}, "--hosts: expected HOST:PORT, found unix:/tmp/x"),
        (
            "auto",
            {},
            "--hosts auto: .*found no JAX_COORDINATOR_ADDRESS and no JAX_NUM_PROCESSES",
        ),
        ("auto", {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_PROCESS_ID": "0"}, "found no JAX_NUM_PROCESSES in"),
    ],
)
def test_what_says_it_badly_is_refused(text, environment, message):
    with pytest.raises(UserError, match=message):
        parse_hosts(text, environment)


@contextlib.contextmanager
def forked(body):
    """A process that forks as `train` does, and the child's number; the child then runs `body`."""
    program = (
        "import os, signal, sys, time\n"
        "from zerocopy_seed.rendezvous import Hosts, fork_and_wait\n"
        "code = fork_and_wait(Hosts('a:1', 4, 2))\n"
        "if code is not None: sys.exit(code)\n"
        f"print(os.getpid(), flush=True)\n{body}"
    )
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("sys.exit(0)", 0, ""),
        ("sys.exit(2)", 2, ""),
        (
            "os.abort()",
            1,
            "host 2 of 4: another host was lost, never came to a:1, or came",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "host 2 of 4: ended by SIGKILL"),
    ],
)
def test_the_end_of_the_child_is_told(body, code, line):
    with forked(body) as (process, _):
        _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors.startswith(line)
    assert errors.count("\n") == bool(line)


def test_signals_are_handed_on():
    body = (
        "signal.signal(signal.SIGTERM, lambda *_: (print('heard', flush=True), sys.exit(7)))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    with forked(body) as (process, _):
        assert process.stdout and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (7, "heard\n")


def test_who_is_stopped_stops_both():
    body = "while True:\n    print('.', flush=True)\n    time.sleep(0.01)"
    with forked(body) as (process, child):
        for number, state in ((signal.SIGTSTP, "T"), (signal.SIGCONT, "S")):
            process.send_signal(number)
            give_up = time.monotonic() + 20
            for one in (process.pid, child):
                while (found := pathlib.Path(f"/proc/{one}/stat").read_text().split()[2]) != state:
                    assert time.monotonic() < give_up, found
        process.kill()


def test_the_child_does_not_outlive_its_parent():
    with forked("time.sleep(60)") as (process, _):
        process.kill()
        began = time.monotonic()
        assert process.stdout and process.stdout.read() == ""  # the child's end of it is closed
        assert time.monotonic() - began < 20
