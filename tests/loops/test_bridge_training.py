"""`train` where environments step in actor processes: real processes, real sockets, real signals."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import jax
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from small_runs import LSTM, MLP, R2D2

from zerocopy_envs.errors import UserError
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import (
    BridgeConfig,
    Config,
    EnvConfig,
    MetricsConfig,
    VTraceConfig,
)
from zerocopy_seed.config_file import dump_config, load_run_config
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics

CARTPOLE = Config(
    env=EnvConfig("gymnasium:CartPole-v1", num_envs=4),
    total_env_steps=200,
    agent=VTraceConfig(unroll_length=5),
    network=MLP,
    metrics=MetricsConfig(every_env_steps=100, tensorboard=False),
    bridge=BridgeConfig(local_actors=2),
)
pytestmark = pytest.mark.usefixtures("actors_find_the_package")


def test_a_run_with_local_actors_is_a_run_like_any_other(tmp_path, capfd):
    run_dir = tmp_path / "run"
    assert train(CARTPOLE, run_dir) == 0
    rows = read_metrics(run_dir)
    assert rows[-1]["env_steps"] >= 200
    assert rows[-1]["num_updates"] >= 10
    returns = [row["episode_return"] for row in rows if row["num_episodes"]]
    assert all(8 <= value <= 500 for value in returns) and returns
    assert {"policy_lag", "inference_wait_s", "dropped_steps", "num_actors"} <= rows[-1].keys()
    assert load_run_config(run_dir) == CARTPOLE
    result = evaluate_run(run_dir, num_episodes=3)
    assert (result.lengths == result.returns).all()
    assert result.env_steps == rows[-1]["env_steps"]

    address = json.loads((run_dir / "bridge.json").read_text())["address"]
    longer = dataclasses.replace(CARTPOLE, total_env_steps=300)
    with reading_the_page() as (port, pages):
        metrics = dataclasses.replace(longer.metrics, port=port)
        assert train(dataclasses.replace(longer, metrics=metrics), run_dir, resume=True) == 0
    assert read_metrics(run_dir)[-1]["env_steps"] >= 300
    assert json.loads((run_dir / "bridge.json").read_text())["address"] == address
    assert address in capfd.readouterr().out
    families = [family.name for page in pages for family in text_string_to_metric_families(page)]
    assert {"zerocopy_seed_actors", "zerocopy_seed_waiting_requests"} <= {*families}

    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert {event["run_id"] for event in events} == {(run_dir / "run_id").read_text().strip()}
    assert all("time" in event for event in events)
    kinds = [event["event"] for event in events]
    assert kinds.count("training") == kinds.count("ended") == kinds.count("checkpoint_saved") == 2
    assert kinds.count("resumed") == 1 and kinds.count("actor_joined") == 4
    joined = [event["slots"] for event in events if event["event"] == "actor_joined"]
    assert sorted(joined) == ["0-1", "0-1", "2-3", "2-3"]


@contextlib.contextmanager
def reading_the_page():
    """A free port, and what can be read there meanwhile, over and over."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pages, is_over = [], threading.Event()

    def read():
        while not is_over.wait(0.02):
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page,
            ):
                pages.append(page.read().decode())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield port, pages
    finally:
        is_over.set()
        reader.join()


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path):
    config = dataclasses.replace(CARTPOLE, bridge=BridgeConfig(address="nowhere"))
    with pytest.raises(UserError, match="nowhere"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("agent", [VTraceConfig(unroll_length=5), R2D2], ids=["vtrace", "r2d2"])
def test_in_lock_step_actors_train_what_the_device_trains(tmp_path, agent):
    config = dataclasses.replace(
        CARTPOLE,
        env=EnvConfig("zerocopy:Catch", num_envs=6),
        total_env_steps=10**6,
        agent=agent,
        network=LSTM,
        bridge=BridgeConfig(local_actors=1, max_policy_lag=0.0),
    )
    # Catch's episodes last 9 steps and a reset: 20 updates of 5 rows of 6 slots are 540 real steps.
    config = dataclasses.replace(config, total_env_steps=540)
    assert train(config, tmp_path / "device") == 0
    remote = dataclasses.replace(config, env=dataclasses.replace(config.env, place="actors"))
    assert train(remote, tmp_path / "actors") == 0

    agent = make_agent(config.agent, config.network, make_environment(config.env).spec, num_slots=6)
    target = jax.eval_shape(lambda: agent.init(jax.random.key(0, impl="threefry2x32")))
    params = []
    for name in ("device", "actors"):
        with Checkpointer(tmp_path / name / "checkpoints") as saves:
            step, learner = saves.restore("learner", target._replace(replay=()))
            assert step == 540
            params.append(jax.tree.map(np.asarray, learner.params))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), *params)
    episodes = [
        [(row["num_episodes"], row.get("episode_return")) for row in read_metrics(tmp_path / name)]
        for name in ("device", "actors")
    ]
    np.testing.assert_allclose(*(np.array(rows, np.float64) for rows in episodes), rtol=1e-6)


def start(tmp_path, *flags):
    (tmp_path / "config.toml").write_text(dump_config(CARTPOLE))
    command = [sys.executable, "-m", "zerocopy_seed.cli", "train", str(tmp_path / "config.toml")]
    return subprocess.Popen(
        [*command, "--run-dir", str(tmp_path / "run"), "--total-env-steps", "100000000", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children(pid):
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def wait_for(condition, seconds=120.0):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def is_alive(pid):
    status = pathlib.Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_local_actors_end_with_their_learner(tmp_path, number):
    with start(tmp_path) as learner:
        wait_for(lambda: read_metrics(tmp_path / "run"))
        actors = [child for child in children(learner.pid) if b"actor" in cmdline(child)]
        assert len(actors) == 2
        learner.send_signal(number)
        output, _ = learner.communicate(timeout=60)
        assert learner.returncode == (0 if number is signal.SIGTERM else -9), output
        wait_for(lambda: not any(map(is_alive, actors)), 15)


def cmdline(pid):
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.slow
def test_a_killed_local_actor_is_started_anew_and_training_goes_on(tmp_path):
    with start(tmp_path) as learner:
        wait_for(lambda: read_metrics(tmp_path / "run"))
        victim = next(child for child in children(learner.pid) if b"actor" in cmdline(child))
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: any(row["dropped_steps"] for row in read_metrics(tmp_path / "run")))
        wait_for(lambda: read_metrics(tmp_path / "run")[-1]["num_actors"] == 2)
        learner.send_signal(signal.SIGTERM)
        output, _ = learner.communicate(timeout=60)
    assert learner.returncode == 0
    assert "local actor" in output and "Traceback" not in output


@pytest.mark.slow
def test_a_second_learner_on_an_address_exits_and_names_it(tmp_path):
    with start(tmp_path) as learner:
        wait_for(lambda: (tmp_path / "run" / "bridge.json").exists())
        address = json.loads((tmp_path / "run" / "bridge.json").read_text())["address"]
        (tmp_path / "second").mkdir()
        with start(tmp_path / "second", "--bridge.address", address) as second:
            output, _ = second.communicate(timeout=120)
        learner.kill()
    assert second.returncode == 2
    assert address in output.splitlines()[-1]
