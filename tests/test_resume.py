import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import CATCH, LSTM, read_checkpoint

from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.leaves import tree_sha256
from zerocopy_seed.loops import train as train_module
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.on_device import (
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
)
from zerocopy_seed.loops.run_checkpoint import checkpoint_items, restore_train_state
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics

# Shuffled minibatches and Adam: whatever the learner remembers is needed to go on.
CONFIG = dataclasses.replace(
    CATCH, network=LSTM, agent=dataclasses.replace(CATCH.agent, num_minibatches=2, num_passes=2)
)


def command(*words):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "envs"])}
    return subprocess.Popen(
        [sys.executable, "-m", "zerocopy_seed.cli", *map(str, words)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_lines(process, run_dir, count, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while len(read_metrics(run_dir)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_stopped_by_sigterm_and_resumed_is_never_stopped(tmp_path):
    config = dataclasses.replace(
        CONFIG, total_env_steps=10**12, metrics=dataclasses.replace(CONFIG.metrics, every_env_steps=2_000)
    )
    (tmp_path / "config.toml").write_text(dump_config(config))
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"

    process = command("train", tmp_path / "config.toml", "--run-dir", stopped)
    wait_for_lines(process, stopped, 2)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "SIGTERM" in errors and "Traceback" not in errors
    at_stop, _ = read_checkpoint(config, stopped)
    before = read_metrics(stopped)
    assert before[-1]["env_steps"] == at_stop

    # As if the first run had gone on after its last checkpoint, and was then killed in the middle of a line.
    with open(stopped / "metrics.jsonl", "a") as lines:
        lines.write(json.dumps({**before[-1], "env_steps": at_stop + 7, "wall_s": 1e9}) + '\n{"env_st')

    total = at_stop + 3_000
    process = command("train", "--run-dir", stopped, "--resume", "--total-env-steps", total)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "resuming" in output and f"{at_stop:,}" in output
    assert train(dataclasses.replace(config, total_env_steps=total), straight) == 0

    end, resumed = read_checkpoint(config, stopped)
    assert end >= total
    assert (end, tree_sha256(resumed)) == (end, tree_sha256(read_checkpoint(config, straight, end)[1]))
    hashes = {evaluate_run(run, num_episodes=2).params_sha256 for run in (stopped, straight)}
    assert len(hashes) == 1

    rows = read_metrics(stopped)
    assert rows[: len(before)] == before
    assert len(rows) > len(before)
    for key in ("env_steps", "num_updates", "wall_s"):
        assert (np.diff([row[key] for row in rows]) > 0).all(), key
    assert rows[-1]["env_steps"] == end and rows[-1]["wall_s"] < 1e9


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("rmsprop", marks=pytest.mark.slow)])
def test_ten_updates_are_five_restored_and_five_more(tmp_path, optimizer):
    config = dataclasses.replace(CONFIG, agent=dataclasses.replace(CONFIG.agent, optimizer=optimizer))
    environment = make_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)
    state = jax.jit(lambda: init_train_state(agent, environment, 3, config.env.num_envs))()
    update = make_update(agent, environment, config.agent.unroll_length)
    names = metric_names(update, state)
    num_metrics = len(names)
    dispatch = jax.jit(make_dispatch(update, names))
    straight, _ = dispatch(state, make_window(num_metrics), jnp.int32(10))

    half, _ = dispatch(state, make_window(num_metrics), jnp.int32(5))
    with Checkpointer(tmp_path) as saves:
        saves.save(5, checkpoint_items(agent, half))
        _, restored = restore_train_state(saves, jax.eval_shape(lambda: state))
    resumed, _ = dispatch(restored, make_window(num_metrics), jnp.int32(5))
    assert tree_sha256(resumed) == tree_sha256(straight)

    # The comparison sees a lost optimiser state.
    forgetful = restored._replace(learner=restored.learner._replace(opt_state=state.learner.opt_state))
    forgot, _ = dispatch(forgetful, make_window(num_metrics), jnp.int32(5))
    assert tree_sha256(forgot.learner.params) != tree_sha256(straight.learner.params)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_while_compiling_saves_and_ends(tmp_path, monkeypatch, number):
    original = train_module._compile

    def compile_and_signal(*arguments):
        os.kill(os.getpid(), number)
        return original(*arguments)

    handler = signal.getsignal(number)
    monkeypatch.setattr(train_module, "_compile", compile_and_signal)
    assert train(CONFIG, tmp_path) == 0
    assert signal.getsignal(number) is handler
    step, state = read_checkpoint(CONFIG, tmp_path)
    assert step == 0 and read_metrics(tmp_path) == []

    monkeypatch.setattr(train_module, "_compile", original)
    assert train(CONFIG, tmp_path, resume=True) == 0
    assert read_checkpoint(CONFIG, tmp_path)[0] >= CONFIG.total_env_steps
