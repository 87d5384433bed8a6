"""One run on several hosts, each a process of its own here: as one process, and when one is lost."""

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import CATCH, LSTM, R2D2, read_checkpoint, read_learned

from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import BridgeConfig, DevicesConfig, VTraceConfig
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("actors_find_the_package")

VTRACE = VTraceConfig(unroll_length=5, num_shards=4, num_minibatches=2, normalize_advantages=True)
ON_DEVICE = dataclasses.replace(
    CATCH, env=dataclasses.replace(CATCH.env, num_envs=8), agent=VTRACE, devices=DevicesConfig(2)
)
ENDLESS = dataclasses.replace(
    ON_DEVICE,
    total_env_steps=10**9,
    checkpoint=dataclasses.replace(CATCH.checkpoint, every_s=1.0),
    metrics=dataclasses.replace(CATCH.metrics, every_env_steps=1000),
)
IN_ACTORS = dataclasses.replace(
    ON_DEVICE,
    env=dataclasses.replace(ON_DEVICE.env, place="actors"),
    bridge=BridgeConfig(local_actors=1, max_policy_lag=0.0),
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def hosts(config, run_dir, count, *words, own_words=(), told=None, options=None):
    """Processes that train `config` together: their parents, as whoever starts them sees them.

    `own_words` are each host's, `told` how many hosts each is told of, `options(index)` what else `Popen` is
    called with.
    """
    file = run_dir.with_suffix(".toml")
    file.write_text(dump_config(config))
    devices = f"device_count={config.devices.learner // count}"
    environment = os.environ | {"XLA_FLAGS": re.sub(r"device_count=\d+", devices, os.environ["XLA_FLAGS"])}
    command = [sys.executable, "-m", "zerocopy_seed.cli", "train", str(file), "--run-dir", str(run_dir)]
    port, processes = free_port(), []
    try:
        for index in range(count):
            where = f"127.0.0.1:{port},{told[index] if told else count},{index}"
            own = ["--hosts", where, *(own_words[index] if own_words else ())]
            given: Any = {"env": environment} | (options(index) if options else {})
            with open(f"{run_dir}.{index}.log", "w") as log:
                processes.append(
                    subprocess.Popen([*command, *words, *own], stdout=log, stderr=subprocess.STDOUT, **given)
                )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def said(run_dir, index):
    with open(f"{run_dir}.{index}.log") as log:
        return log.read()


def codes(processes, timeout=200):
    give_up = time.monotonic() + timeout
    return [process.wait(max(0.1, give_up - time.monotonic())) for process in processes]


def on_hosts(config, run_dir, count, *words):
    with hosts(config, run_dir, count, *words) as processes:
        assert codes(processes) == [0] * count, [said(run_dir, index) for index in range(count)]


def assert_same(config, one, several):
    """The two runs' last checkpoints, learner, replay and loop, but for typed keys."""
    (step, expected), (found_step, found) = (read_checkpoint(config, run_dir) for run_dir in (one, several))
    assert step == found_step >= config.total_env_steps
    for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), atol=1e-5)


def children_of(number):
    threads = pathlib.Path(f"/proc/{number}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def child_of(process):
    return children_of(process.pid)[0]


def wait_for_line(run_dir):
    give_up = time.monotonic() + 200
    while not read_metrics(run_dir):
        assert time.monotonic() < give_up
        time.sleep(0.1)


def wait_for_checkpoint(run_dir, processes):
    give_up = time.monotonic() + 200
    with Checkpointer(run_dir / "checkpoints") as saves:
        while not saves.steps():
            assert all(process.poll() is None for process in processes) and time.monotonic() < give_up
            time.sleep(0.1)
        return saves.steps()[-1]


def test_two_hosts_are_as_one(tmp_path):
    assert train(dataclasses.replace(ON_DEVICE, devices=DevicesConfig()), tmp_path / "one") == 0
    on_hosts(ON_DEVICE, tmp_path / "two", 2)
    assert_same(ON_DEVICE, tmp_path / "one", tmp_path / "two")
    lines, (expected, found) = [], (read_metrics(tmp_path / name) for name in ("one", "two"))
    for one, two in zip(expected, found, strict=True):
        lines.append((one["env_steps"], one["num_episodes"]))
        assert lines[-1] == (two["env_steps"], two["num_episodes"])
    assert lines
    assert said(tmp_path / "two", 1).count("saved") == 0  # the first host speaks


def test_hosts_with_different_settings_are_refused(tmp_path):
    own_words = ((), ("--agent.learning-rate", "0.5"))
    with hosts(ON_DEVICE, tmp_path / "run", 2, own_words=own_words) as processes:
        assert codes(processes) == [2, 2]
    line = "agent.learning_rate: expected the same on all hosts, found 0.001 on host 0 and 0.5 on host 1\n"
    assert said(tmp_path / "run", 0).endswith(line)
    assert said(tmp_path / "run", 1).endswith(line)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--devices.learner", "1"),
            "devices.learner: expected a multiple of 2, the number of hosts, found 1",
        ),
        (("--devices.learner", "4"), "devices.learner: expected at most 2: there are 2 cpu devices, found 4"),
        (("--profile",), "--profile: expected one host, not 2"),
        (("--num-seeds", "2"), "num_seeds: expected one host, not 2, found 2"),
        (
            ("--evaluation.every-env-steps", "100"),
            "evaluation.every_env_steps: expected one host, not 2, found 100",
        ),
        (("--resume",), "expected a run to resume, found no config.toml there"),
    ],
)
def test_what_several_hosts_cannot_do_is_refused(tmp_path, words, line):
    with hosts(ON_DEVICE, tmp_path / "run", 2, *words) as processes:
        assert codes(processes) == [2, 2]
    for index in range(2):
        assert line in said(tmp_path / "run", index)
        assert "Traceback" not in said(tmp_path / "run", index)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_refusal_of_one_host_ends_all(tmp_path):
    """Of a socket whose folder only the other has."""
    (tmp_path / "0" / "here").mkdir(parents=True)
    (tmp_path / "1").mkdir()
    bridge = BridgeConfig(local_actors=1, address="unix:here/bridge")
    config = dataclasses.replace(IN_ACTORS, bridge=bridge)
    options = lambda index: {"cwd": tmp_path / str(index)}  # noqa: E731
    with hosts(config, tmp_path / "run", 2, options=options) as processes:
        assert codes(processes, 60) == [2, 2]
    assert "its folder is not there" in said(tmp_path / "run", 1).splitlines()[-1]
    expected = "host 0 of 2: expected all hosts to begin, found that host 1 cannot, which says why"
    assert said(tmp_path / "run", 0).splitlines()[-1] == expected
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_hosts_with_unequal_numbers_of_devices_are_refused(tmp_path):
    def options(index):
        flags = re.sub(r"device_count=\d+", f"device_count={index + 1}", os.environ["XLA_FLAGS"])
        return {"env": os.environ | {"XLA_FLAGS": flags}}

    with hosts(ON_DEVICE, tmp_path / "run", 2, options=options) as processes:
        assert codes(processes) == [2, 2]
    line = "--hosts: expected as many devices on every host, found 1 on host 0 and 2 on host 1"
    assert [said(tmp_path / "run", index).splitlines()[-1] for index in range(2)] == [line, line]


@pytest.mark.slow
def test_hosts_that_were_told_of_different_numbers_are_refused(tmp_path):
    with hosts(ON_DEVICE, tmp_path / "run", 2, told=(2, 3)) as processes:
        assert codes(processes) == [2, 2]
    line = "--hosts, NUM_HOSTS: expected the same on all hosts, found 2 on host 0 and 3 on host 1"
    assert [said(tmp_path / "run", index).splitlines()[-1] for index in range(2)] == [line, line]


@pytest.mark.slow
def test_a_directory_that_is_not_shared_is_refused(tmp_path):
    for index in range(2):
        (tmp_path / str(index)).mkdir()
    options = lambda index: {"cwd": tmp_path / str(index)}  # noqa: E731
    with hosts(ON_DEVICE, tmp_path / "run", 2, "--run-dir", "run", options=options) as processes:
        assert codes(processes, 150) == [2, 2]
    line = "expected a directory on a file system that all hosts share, found another one on host 1, or none"
    assert line in said(tmp_path / "run", 1)


@pytest.mark.slow
def test_a_part_of_a_checkpoint_that_one_host_cannot_write_ends_all(tmp_path):
    config = dataclasses.replace(
        ENDLESS,
        network=dataclasses.replace(ENDLESS.network, hidden_sizes=(64, 64)),
        checkpoint=dataclasses.replace(ENDLESS.checkpoint, every_s=5.0),
    )
    with hosts(config, tmp_path / "run", 2) as processes:
        wait_for_line(tmp_path / "run")
        limit = ["prlimit", "--pid", str(child_of(processes[1])), "--fsize=2000"]  # for its files
        subprocess.run(limit, check=True)
        assert codes(processes, 120) == [1, 1]
    assert "checkpoint" in said(tmp_path / "run", 1) and "was not saved" in said(tmp_path / "run", 1)
    for index in range(2):
        line = "a host could not write its part of a checkpoint, and the run ends on all; --resume goes on"
        assert line in said(tmp_path / "run", index)


@pytest.mark.slow
def test_actors_of_one_host_that_fail_end_all(tmp_path):
    """They cannot import what the learner of their host can."""
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    config = dataclasses.replace(IN_ACTORS, total_env_steps=10**9)
    broken = tmp_path / "1" / "zerocopy_seed.py"  # found first, in the directory that actors start in
    options = lambda index: {"cwd": tmp_path / str(index)}  # noqa: E731
    with hosts(config, tmp_path / "run", 2, options=options) as processes:
        wait_for_line(tmp_path / "run")
        broken.write_text("raise SystemExit(3)")
        for number in children_of(child_of(processes[1])):
            os.kill(number, signal.SIGKILL)
        assert codes(processes, 120) == [1, 1]
    assert "host 0: host 1: local actor 0: ends with code 3 as soon as" in said(tmp_path / "run", 0)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("agent", [VTRACE, dataclasses.replace(R2D2, num_shards=4)], ids=["vtrace", "r2d2"])
@pytest.mark.parametrize("place", ["auto", "actors"])
def test_any_number_of_hosts_is_as_one(tmp_path, place, agent, count):
    config = dataclasses.replace(
        ON_DEVICE if place == "auto" else IN_ACTORS,
        agent=agent,
        network=LSTM,
        devices=DevicesConfig(4),
        total_env_steps=640,
    )
    assert train(dataclasses.replace(config, devices=DevicesConfig()), tmp_path / "one") == 0
    on_hosts(config, tmp_path / "several", count)
    if place == "auto":
        return assert_same(config, tmp_path / "one", tmp_path / "several")
    found = [read_learned(config, tmp_path / name) for name in ("one", "several")]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), *found)


@pytest.mark.slow
def test_actors_that_hosts_have_unequal_numbers_of_train_together(tmp_path):
    """With a replay, and slots that nobody has: hosts are due for an update in different rounds."""
    config = dataclasses.replace(
        IN_ACTORS,
        agent=dataclasses.replace(R2D2, num_shards=4),
        bridge=BridgeConfig(local_actors=1, envs_per_actor=3),
        total_env_steps=2000,
    )
    own_words = ((), ("--bridge.envs-per-actor", "1", "--bridge.local-actors", "2"))
    with hosts(config, tmp_path / "run", 2, own_words=own_words) as processes:
        assert codes(processes) == [0, 0], [said(tmp_path / "run", index) for index in range(2)]
    last = read_metrics(tmp_path / "run")[-1]
    assert (last["num_actors"], last["num_live_slots"]) == (3, 5)
    assert last["env_steps"] >= 2000 and last["num_episodes"] > 0
    for name in ("events.jsonl", "events.1.jsonl"):
        assert "actor_joined" in (tmp_path / "run" / name).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("count", "lost"), [(2, 0), (2, 1), (4, 2)])
def test_a_lost_host_ends_all_and_a_relaunch_resumes(tmp_path, count, lost, number):
    config = dataclasses.replace(ENDLESS, devices=DevicesConfig(count))
    run_dir = tmp_path / "run"
    with hosts(config, run_dir, count) as processes:
        wait_for_checkpoint(run_dir, processes)
        victim = processes[lost]
        if number == signal.SIGSTOP:  # the process that trains, which its parent waits for
            os.kill(child_of(victim), number)
        else:
            victim.send_signal(number)
        began = time.monotonic()
        others = [process for process in processes if process is not victim]
        assert codes(others, 60) == [1] * (count - 1)
        print(f"{number.name} of host {lost} of {count}: all ended after {time.monotonic() - began:.1f} s")
    for index in set(range(count)) - {lost}:
        assert "another host was lost, never came to 127.0.0.1:" in said(run_dir, index).splitlines()[-1]
    with Checkpointer(run_dir / "checkpoints") as saves:
        newest = saves.steps()[-1]
    on_hosts(config, run_dir, count, "--resume", "--total-env-steps", str(newest + 1000))
    assert f"resuming {run_dir} at {newest:,} env_steps" in said(run_dir, 0)


@pytest.mark.slow
@pytest.mark.parametrize("told", ["one", "all", "all and their children"])
def test_sigterm_saves_and_ends_all(tmp_path, told):
    with hosts(ENDLESS, tmp_path / "run", 2) as processes:
        wait_for_checkpoint(tmp_path / "run", processes)
        for process in processes[1:] if told == "one" else processes:
            children = [child_of(process)] if "children" in told else []
            for number in (process.pid, *children):
                os.kill(number, signal.SIGTERM)
        assert codes(processes, 60) == [0, 0]
    step, _ = read_checkpoint(ENDLESS, tmp_path / "run")
    assert step == read_metrics(tmp_path / "run")[-1]["env_steps"]


@pytest.mark.slow
def test_hosts_begin_with_the_parameters_of_another_run(tmp_path):
    origin = dataclasses.replace(ON_DEVICE, devices=DevicesConfig())
    assert train(origin, tmp_path / "origin") == 0
    words = ("--init-from", str(tmp_path / "origin"), "--agent.learning-rate", "1e-30")
    on_hosts(ON_DEVICE, tmp_path / "run", 2, *words)
    (_, expected), (_, found) = (read_checkpoint(origin, tmp_path / name) for name in ("origin", "run"))
    jax.tree.map(np.testing.assert_array_equal, expected.learner.params, found.learner.params)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_hosts(tmp_path):
    """Of four hosts, then one, then two, it is the run that was never stopped."""
    config = dataclasses.replace(ON_DEVICE, agent=dataclasses.replace(R2D2, num_shards=4))
    once = dataclasses.replace(config, devices=DevicesConfig(), total_env_steps=900)
    assert train(once, tmp_path / "once") == 0
    on_hosts(dataclasses.replace(config, devices=DevicesConfig(4)), tmp_path / "run", 4)
    assert train(dataclasses.replace(once, total_env_steps=600), tmp_path / "run", resume=True) == 0
    last = dataclasses.replace(config, total_env_steps=900)
    on_hosts(last, tmp_path / "run", 2, "--resume")
    assert_same(last, tmp_path / "once", tmp_path / "run")
