"""Actors that are killed cost their unfinished unrolls, and nothing else."""

import os
import random
import signal
import subprocess
import time

import numpy as np
import pytest
from counting_learner import COUNTING, LENGTH, make_engine, serving
from processes import Process, actors_of, is_alive, wait_for

from zerocopy_seed.config import (
    BridgeConfig,
    Config,
    EnvConfig,
    MetricsConfig,
    NetworkConfig,
    RecordConfig,
    VTraceConfig,
)
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.experience import open_index
from zerocopy_seed.loops import local_actors
from zerocopy_seed.loops.local_actors import LocalActors
from zerocopy_seed.metrics import read_metrics

ENVS = 4  # of an actor


def require_no_joined_runs(rounds):
    """Of the counting environment an observation is (seed, age), and no two runs of an actor share a seed.

    Args:
      rounds: for each, in order: seed and age [T+1, n], slot [n], continues [n], and the core [n] that
        entered row 0, or None.
    """
    last: dict[int, tuple[float, float]] = {}
    num_seeds = set()
    for seed, age, slots, continues, core in rounds:
        np.testing.assert_array_equal(seed[1:], seed[:-1])
        np.testing.assert_array_equal(age[1:], (age[:-1] + 1) % 5)
        for column, slot in enumerate(slots):
            begins = seed[0, column], age[0, column]
            if continues[column]:
                assert last[slot] == begins, "an unroll goes on where another run ended"
            else:
                assert age[0, column] == 0, "an unroll without a predecessor begins with FIRST"
                if core is not None:
                    assert core[column] == 0, "a fresh slot has a core of zeros"
            last[slot] = seed[-1, column], age[-1, column]
            num_seeds.add(seed[0, column])
    return len(num_seeds)


def play_and_kill(tmp_path, num_kills, num_actors):
    engine = make_engine(num_actors * ENVS)
    freed = []
    with serving(engine, step_s=0.002) as (server, taken):

        def start(number):
            words = "actor", server.addresses[0], "--env", COUNTING, "--num-envs", ENVS
            return Process(*words, log=tmp_path / f"{number}.log")

        def is_full():
            return server.bridge.num_actors == num_actors  # joined, and their streams open

        actors = [start(number) for number in range(num_actors)]
        try:
            wait_for(lambda: is_full() and taken, process=actors[0])
            for number in range(num_kills):
                time.sleep(random.uniform(0, 0.05))
                victim = random.randrange(num_actors)
                began = time.monotonic()
                actors[victim].kill()
                wait_for(lambda: engine.num_free == ENVS)
                freed.append(time.monotonic() - began)
                actors[victim].wait()
                before = len(taken)
                if num_actors > 1:  # the others' unrolls are enough to go on with
                    wait_for(lambda: len(taken) > before)  # noqa: B023
                actors[victim] = start(num_actors + number)
                wait_for(is_full)
            after = len(taken)
            wait_for(lambda: len(taken) > after)
        finally:
            for actor in actors:
                actor.kill()
                actor.wait()
        wait_for(lambda: engine.num_free == num_actors * ENVS)
    rounds = []
    for found in taken:
        count = found.trajectory.timestep.observation["count"][:, : len(found.slot)]
        core = found.trajectory.recurrent.core[: len(found.slot)]
        continues = found.trajectory.continues[: len(found.slot)]
        rounds.append((count[..., 0], count[..., 1], found.slot, continues, core))
    num_runs = num_kills + num_actors
    # Some runs end before an unroll of theirs does.
    assert num_actors * ENVS <= require_no_joined_runs(rounds) <= num_runs * ENVS
    assert server.bridge.num_lost == num_runs  # at the end all are killed
    assert 0 <= engine.figures()["dropped_steps"] <= num_runs * ENVS * LENGTH
    return freed


def test_a_killed_actor_costs_its_unfinished_unrolls(tmp_path):
    assert play_and_kill(tmp_path, num_kills=1, num_actors=1)[0] < 1.0


@pytest.mark.parametrize(("program", "num_ends"), [("sleep", 6), ("false", 2)])
def test_only_those_that_end_by_themselves_are_taken_for_broken(monkeypatch, program, num_ends):
    monkeypatch.setattr(LocalActors, "_start", lambda *_: subprocess.Popen([program, "60"]))
    monkeypatch.setattr(local_actors, "restart_delay_s", lambda *_: 0.0)
    said: list[str] = []
    with LocalActors("unix:/nowhere", [1], env="zerocopy:Catch", warn=said.append) as actors:
        for _ in range(6):
            (pid,) = actors.pids
            if program == "sleep":
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not is_alive(pid), 10)  # noqa: B023
            if failure := actors.check():
                break
    assert len(said) == num_ends
    assert bool(failure) == (program == "false")


def test_one_that_is_killed_again_and_again_is_started_later(monkeypatch):
    """As by a kernel that is short of memory."""
    monkeypatch.setattr(LocalActors, "_start", lambda *_: subprocess.Popen(["sleep", "60"]))
    monkeypatch.setattr(local_actors, "restart_delay_s", lambda ends, longest: 0.3 * (ends > 1))
    said: list[str] = []
    with LocalActors("unix:/nowhere", [1], env="zerocopy:Catch", warn=said.append) as actors:
        for _ in range(2):
            (pid,) = actors.pids
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not is_alive(pid), 10)  # noqa: B023
            began = time.monotonic()
            assert actors.check() == actors.check() == ""
        assert actors.pids == [pid]
        wait_for(lambda: actors.check() or actors.pids != [pid], 10)
        assert time.monotonic() - began > 0.2
    assert said == [
        "local actor 0 ended with code -9; starting it anew",
        "local actor 0 ended with code -9; starting it anew in 0.3 s",
    ]


@pytest.mark.slow
def test_fifty_actors_killed_in_mid_step(tmp_path):
    freed = play_and_kill(tmp_path, num_kills=50, num_actors=2)
    print(f"slots were free after {np.median(freed):.3f} s, at most {max(freed):.3f} s")
    assert max(freed) < 1.0


@pytest.mark.slow
def test_a_run_outlives_its_local_actors_fifty_times(tmp_path):
    num_actors = 4
    config = Config(
        env=EnvConfig(COUNTING, num_envs=num_actors * ENVS, settings={"step_s": 0.005}),
        total_env_steps=10**12,
        agent=VTraceConfig(unroll_length=5),
        network=NetworkConfig(hidden_sizes=(8,), init="lecun"),
        metrics=MetricsConfig(every_env_steps=200, tensorboard=False),
        bridge=BridgeConfig(local_actors=num_actors),
        record=RecordConfig(dir=str(tmp_path / "record"), shard_mb=0.05),
    )
    (tmp_path / "config.toml").write_text(dump_config(config))
    run_dir = tmp_path / "run"
    with Process("train", tmp_path / "config.toml", "--run-dir", run_dir, log=tmp_path / "log") as learner:
        wait_for(lambda: read_metrics(run_dir), process=learner)
        for _ in range(50):
            wait_for(lambda: read_metrics(run_dir)[-1]["num_actors"] >= num_actors - 1, process=learner)
            # the line may be old: those that are killed often are started anew after a while
            wait_for(lambda: len(actors_of(learner.pid)) >= num_actors - 1, process=learner)
            time.sleep(random.uniform(0, 0.5))
            os.kill(random.choice(sorted(actors_of(learner.pid))[:2]), signal.SIGKILL)  # two that have joined
        at = read_metrics(run_dir)[-1]["env_steps"]
        wait_for(lambda: read_metrics(run_dir)[-1]["env_steps"] > at + 1000, process=learner)
        wait_for(lambda: read_metrics(run_dir)[-1]["num_actors"] == num_actors, process=learner)
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(300) == 0, learner.said
    rows = read_metrics(run_dir)
    assert 0 < sum(row["dropped_steps"] for row in rows) <= 50 * ENVS * config.agent.unroll_length
    assert rows[-1]["num_lost_actors"] >= 25  # others were killed before they had joined
    assert "Traceback" not in learner.said
    index = open_index(tmp_path / "record")
    assert index is not None
    require_no_joined_runs(recorded_rounds(tmp_path / "record"))


def recorded_rounds(directory):
    rounds = []
    for path in sorted(directory.glob("*.npz")):
        with np.load(path) as shard:
            names = (".timestep.observation['count']", ".slot", ".continues", ".timestep.step_type")
            arrays = [shard[name] for name in names]
        for count, slot, continues, step_type in zip(*arrays, strict=True):
            real = step_type.any(axis=0)  # columns of padding are zeros
            rounds.append((count[:, real, 0], count[:, real, 1], slot[real], continues[real], None))
    return rounds
