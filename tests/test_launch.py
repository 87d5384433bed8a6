"""`zerocopy-seed launch ray`: its mistakes, when it places actors anew, and a fleet on a real Ray cluster."""

import contextlib
import importlib.util
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from zerocopy_seed.cli import main
from zerocopy_seed.restarts import restart_delay_s

ROOT = pathlib.Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "zerocopy_seed.cli"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", "launch: expected ray, found nothing"),
        ("slurm --actors 2 host:1", "launch: expected ray, found slurm"),
        ("ray host:1", "--actors"),
        ("ray --actors 2", "ADDRESS"),
        ("ray --actors 0 host:1", "--actors: expected at least 1, found 0"),
        ("ray --actors two host:1", "argument --actors: invalid int value: 'two'"),
        ("ray --actors 2 --num-envs 0 host:1", "--num-envs: expected at least 1, found 0"),
        ("ray --actors 2 host", "address 'host': expected HOST:PORT"),
        ("ray --actors 2 --cpus-per-actor 1.5 host:1", "--cpus-per-actor: expected a whole number"),
        ("ray --actors 2 --cpus-per-actor nan host:1", "--cpus-per-actor: expected a whole number"),
        ("ray --actors 2 --reconnect-s -1 host:1", "--reconnect-s: expected at least 0"),
        ("ray --actors 2 host:1 --credentials x", "unrecognized arguments: --credentials x"),
        (
            "ray --actors 2 host:1",
            'ray: expected it to be installed, found no such package; pip install "zero',
        ),
    ],
)
def test_mistakes_are_one_line_and_need_no_ray(words, complaint, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert main(["launch", *words.split()]) == 2
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)
    said = capsys.readouterr()
    assert complaint in said.err and said.err.count("\n") == 1 and said.out == ""


def test_what_ends_as_it_starts_is_placed_anew_ever_more_slowly():
    assert [restart_delay_s(ends) for ends in range(6)] == [0, 0, 1, 2, 4, 8]
    assert restart_delay_s(10_000) == 60


@contextlib.contextmanager
def process(*words, cwd, output):
    with (cwd / output).open("wb") as file:
        child = subprocess.Popen(
            words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def wait_for(path, pattern, count=1, within_s=300.0):
    """The groups of the last of so many matches, once they are there."""
    deadline = time.monotonic() + within_s
    while len(found := re.findall(pattern, path.read_text(), re.MULTILINE)) < count:
        assert time.monotonic() < deadline, f"{path.name} has no {pattern}:\n{path.read_text()}"
        time.sleep(0.2)
    return found[count - 1]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def parent_of(pid):
    return int(
        re.findall(r"^PPid:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0]
    )


@pytest.fixture
def cluster(tmp_path):
    """Address of a Ray cluster of this machine alone."""
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    start += ["--include-dashboard=false", "--disable-usage-stats"]
    for _ in range(5):  # Ray gives a start half a minute, which may be too little where much else runs
        port = free_port()
        with process(*start, f"--port={port}", cwd=tmp_path, output="ray") as head:
            # Ray writes the address of its own choice for this machine.
            while not (found := re.findall(r"--address='(\S+)'", (tmp_path / "ray").read_text())):
                if head.poll() is not None:
                    break
                time.sleep(0.2)
            else:
                yield found[0]
                head.terminate()  # with --block it ends what it has started
                head.wait(60)
                return
    pytest.fail(f"no Ray cluster: {(tmp_path / 'ray').read_text()}")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='pip install "zerocopy_seed[ray]"')
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_fleet_on_ray_outlives_a_killed_worker_and_ends_with_its_run(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'envs'}")
    address = f"127.0.0.1:{free_port()}"
    total = 4_000
    learner = [*COMMAND, "train", ROOT / "configs" / "vtrace_gymnasium_cartpole.toml", "--run-dir", "run"]
    learner += ["--env.num-envs", "8", "--bridge.local-actors", "0", "--bridge.address", address]
    learner += ["--total-env-steps", str(total)]
    launch = [*COMMAND, "launch", "ray", "--actors", "2", "--num-envs", "4", "--cpus-per-actor", "0.5"]
    launch += ["--ray-address", cluster, address]
    with process(*learner, cwd=tmp_path, output="learner") as training:
        wait_for(tmp_path / "learner", "room for 8 environments")

        with process(*launch, cwd=tmp_path, output="first") as fleet:
            placed = r"^actor 0 placed on \S+, pid (\d+)$"
            pid = int(wait_for(tmp_path / "first", placed))
            other = int(wait_for(tmp_path / "first", placed.replace("actor 0", "actor 1")))
            os.kill(parent_of(pid), signal.SIGKILL)  # Ray's worker
            wait_for(tmp_path / "first", "^actor 0 was lost (.*); placing it anew$")
            again = int(wait_for(tmp_path / "first", placed, count=2))
            assert again != pid
            os.kill(again, signal.SIGKILL)  # the actor below a worker
            wait_for(tmp_path / "first", "^actor 0 ended with code -9; placing it anew( in 1 s)?$")
            last = int(wait_for(tmp_path / "first", placed, count=3))
            fleet.send_signal(signal.SIGTERM)
            assert fleet.wait(120) == 0, (tmp_path / "first").read_text()
        text = (tmp_path / "first").read_text()
        assert "SIGTERM: ending 2 actors" in text and "actor 1 ended\n" in text and "Traceback" not in text
        deadline = time.monotonic() + 30
        while any(pathlib.Path(f"/proc/{gone}").exists() for gone in (pid, other, again, last)):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert training.poll() is None, (tmp_path / "learner").read_text()

        with process(*launch, "--env", "nobody:Knows", cwd=tmp_path, output="refused") as fleet:
            assert fleet.wait(300) == 2
        assert re.search(
            "^actor [01]: .*no module .nobody.", (tmp_path / "refused").read_text(), re.MULTILINE
        )

        with process(*launch, cwd=tmp_path, output="second") as fleet:
            assert training.wait(600) == 0, (tmp_path / "learner").read_text()
            assert fleet.wait(120) == 0, (tmp_path / "second").read_text()
        ended = re.findall(
            "^actor [01] ended: the run is over$", (tmp_path / "second").read_text(), re.MULTILINE
        )
        assert len(ended) == 2
