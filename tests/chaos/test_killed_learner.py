"""A learner that is killed costs at most the work since its last checkpoint, and actors come back."""

import contextlib
import json
import random
import re
import signal
import time

import numpy as np
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
    with contextlib.ExitStack() as stack:

        def start(*words):
            log = tmp_path / f"learner-{len(list(tmp_path.glob('learner-*')))}"
            return stack.enter_context(Process("train", *words, "--run-dir", run_dir, log=log))

        learner, at = start(tmp_path / "config.toml"), 0
        wait_for(lambda: (run_dir / "bridge.json").exists(), process=learner)
        address = json.loads((run_dir / "bridge.json").read_text())["address"]
        words = "actor", address, "--num-envs", 2, "--reconnect-s", "inf"
        remote = stack.enter_context(Process(*words, log=tmp_path / "remote"))
        for number in range(NUM_KILLS):
            if number % 5 != 4:  # else while it starts
                wait_for(lambda: newest_line(run_dir) > at, process=learner)  # noqa: B023
            time.sleep(random.uniform(0, 2))
            local = actors_of(learner.pid)
            learner.kill()
            learner.wait()
            killed_at = time.monotonic()
            in_mid_save += bool(list(run_dir.glob("checkpoints/*.unfinished*")))
            newest = (finished_steps(run_dir) or [0])[-1]
            wait_for(lambda: not any(map(is_alive, local)), 60)  # noqa: B023
            learner = start("--resume")
            learner.wait_to_say("compiled in")
            resumed = re.search(r"resuming .* at ([\d,]+) env_steps", learner.said)
            assert (int(resumed[1].replace(",", "")) if resumed else 0) == newest >= at, learner.said
            at = newest
            assert json.loads((run_dir / "bridge.json").read_text())["address"] == address
            if number % 5 != 3:
                wait_for(lambda: newest_line(run_dir) > at, process=learner)  # noqa: B023
                took.append(time.monotonic() - killed_at)
            assert remote.poll() is None, remote.said
        wait_for(lambda: newest_line(run_dir) > at, process=learner)
        wait_for(lambda: read_metrics(run_dir)[-1]["num_actors"] == 2, process=learner)
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(300) == 0, learner.said
        remote.terminate()
        assert remote.wait(30) == 0
    assert all("Traceback" not in path.read_text() for path in tmp_path.glob("learner-*"))
    rows = read_metrics(run_dir)
    for name in ("env_steps", "num_updates"):
        counts = [row[name] for row in rows]
        assert counts == sorted(set(counts)), name
    print(f"{in_mid_save} of {NUM_KILLS} kills in mid-save")
    print(f"trains again after {np.median(took):.1f} s, at most {max(took):.1f} s")
    assert in_mid_save


def newest_line(run_dir):
    rows = read_metrics(run_dir)
    return rows[-1]["env_steps"] if rows else 0
