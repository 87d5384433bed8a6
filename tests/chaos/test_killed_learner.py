"""A learner that is killed costs at most the work since its last checkpoint, and actors come back."""

import json
import os
import random
import re
import signal
import time

import pytest
from processes import Process, actors_of, finished_steps, is_alive, wait_for
from small_runs import MLP

from zerocopy_seed.config import (
    BridgeConfig,
    CheckpointConfig,
    Config,
    EnvConfig,
    MetricsConfig,
    VTraceConfig,
)
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.metrics import read_metrics

NUM_KILLS = 20

CONFIG = Config(
    env=EnvConfig("gymnasium:CartPole-v1", num_envs=4),
    total_env_steps=10**12,
    agent=VTraceConfig(unroll_length=5),
    network=MLP,
    checkpoint=CheckpointConfig(every_s=0.0),  # always saving, so that some kills come in the middle of it
    metrics=MetricsConfig(every_env_steps=100, tensorboard=False),
    bridge=BridgeConfig(local_actors=1, envs_per_actor=2),
)


@pytest.mark.slow
def test_twenty_times_in_a_row(tmp_path):
    run_dir, took, in_mid_save = tmp_path / "run", [], 0
    (tmp_path / "config.toml").write_text(dump_config(CONFIG))
    start = Process("train", tmp_path / "config.toml", "--run-dir", run_dir, log=tmp_path / "learner-0")
    wait_for(lambda: (run_dir / "bridge.json").exists(), process=start)
    address = json.loads((run_dir / "bridge.json").read_text())["address"]
    with Process("actor", address, "--num-envs", 2, "--reconnect-s", "inf", log=tmp_path / "actor") as remote:
        learner, at = start, 0
        for number in range(1, NUM_KILLS + 1):
            if random.random() < 0.8:  # else while it starts
                wait_for(lambda: newest_line(run_dir) > at, process=learner)  # noqa: B023
            time.sleep(random.uniform(0, 2))
            local = actors_of(learner.pid)
            learner.kill()
            learner.wait()
            killed_at = time.monotonic()
            in_mid_save += any("unfinished" in name for name in os.listdir(run_dir / "checkpoints"))
            finished = finished_steps(run_dir)
            wait_for(lambda: not any(map(is_alive, local)), 10)  # noqa: B023
            learner = Process("train", "--run-dir", run_dir, "--resume", log=tmp_path / f"learner-{number}")
            learner.wait_to_say("compiled in")
            resumed = re.search(r"resuming .* at ([\d,]+) env_steps", learner.said)
            now = int(resumed[1].replace(",", "")) if resumed else 0
            assert now == (finished or [0])[-1] and now >= at
            at = now
            assert all(row["env_steps"] <= at for row in read_metrics(run_dir)[:1]) or not at
            assert json.loads((run_dir / "bridge.json").read_text())["address"] == address
            assert "is taken" not in learner.said
            if random.random() < 0.3:
                wait_for(lambda: newest_line(run_dir) > at, process=learner)  # noqa: B023
                took.append(time.monotonic() - killed_at)
            assert remote.poll() is None, remote.said
        wait_for(
            lambda: read_metrics(run_dir)[-1:] and read_metrics(run_dir)[-1]["num_actors"] == 2,
            process=learner,
        )
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(120) == 0, learner.said
        assert all("Traceback" not in path.read_text() for path in tmp_path.glob("learner-*"))
        remote.terminate()
        assert remote.wait(30) == 0
    rows = read_metrics(run_dir)
    for name in ("env_steps", "num_updates"):
        counts = [row[name] for row in rows]
        assert counts == sorted(set(counts)), name
    print(f"{in_mid_save} of {NUM_KILLS} kills in mid-save; lines again after {max(took, default=0):.1f} s")
    assert in_mid_save


def newest_line(run_dir):
    rows = read_metrics(run_dir)
    return rows[-1]["env_steps"] if rows else 0
