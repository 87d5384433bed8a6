import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import CATCH, LSTM, read_checkpoint

from zerocopy_envs.types import TimeStep
from zerocopy_seed import load_policy
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import R2D2Config
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.leaves import tree_sha256
from zerocopy_seed.loops import sources
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.on_device import (
    TrainState,
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
)
from zerocopy_seed.loops.run_checkpoint import checkpoint_items, restore_train_state
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics
from zerocopy_seed.types import Agent

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


# Every unroll completes a sequence of each of 4 slots, from the third on; a ring holds 8 unrolls.
R2D2 = dataclasses.replace(
    CATCH,
    network=LSTM,
    agent=R2D2Config(
        unroll_length=4, period=4, sequence_length=8, replay_capacity=32, min_replay=12,
        batch_size=4, target_update_period=3, learning_rate=1e-2,
    ),
)  # fmt: skip


@pytest.mark.slow  # without a signal, and with a replay, it is in the default run
@pytest.mark.parametrize("config", [CONFIG, R2D2], ids=["vtrace", "r2d2"])
def test_stopped_by_sigterm_and_resumed_is_never_stopped(tmp_path, config):
    config = dataclasses.replace(
        config, total_env_steps=10**12, metrics=dataclasses.replace(config.metrics, every_env_steps=2_000)
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


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
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


class R2D2Run(NamedTuple):
    agent: Agent
    begin: TrainState
    advance: Callable[[TrainState, int], TrainState]


@pytest.fixture(scope="module")
def r2d2():
    environment = make_environment(R2D2.env)
    agent = make_agent(R2D2.agent, R2D2.network, environment.spec, num_slots=R2D2.env.num_envs)
    state = jax.jit(lambda: init_train_state(agent, environment, 3, R2D2.env.num_envs))()
    update = make_update(agent, environment, R2D2.agent.unroll_length)
    names = metric_names(update, state)
    dispatch = jax.jit(make_dispatch(update, names))
    return R2D2Run(agent, state, lambda state, n: dispatch(state, make_window(len(names)), jnp.int32(n))[0])


def test_a_replay_that_was_saved_goes_on_bit_for_bit(r2d2, tmp_path):
    half, straight = r2d2.advance(r2d2.begin, 14), r2d2.advance(r2d2.begin, 22)
    with Checkpointer(tmp_path) as saves:
        saves.save(14, checkpoint_items(r2d2.agent, half))
        _, restored = restore_train_state(saves, jax.eval_shape(lambda: half))
    assert tree_sha256(restored) == tree_sha256(half)
    resumed = r2d2.advance(restored, 8)
    assert tree_sha256(resumed) == tree_sha256(straight)
    assert tree_sha256(half.learner.params) != tree_sha256(r2d2.begin.learner.params)

    # The comparison sees lost priorities.
    masses = half.learner.replay.masses
    evened = half.learner.replay._replace(
        masses=jax.tree.map(lambda sums: (sums > 0).astype(jnp.float32), masses)
    )
    forgot = r2d2.advance(restored._replace(learner=restored.learner._replace(replay=evened)), 8)
    assert tree_sha256(forgot.learner.params) != tree_sha256(straight.learner.params)


def test_a_replay_that_was_left_out_is_refilled_before_learning_goes_on(r2d2, tmp_path):
    half = r2d2.advance(r2d2.begin, 14)
    with Checkpointer(tmp_path) as saves:
        saves.save(14, checkpoint_items(r2d2.agent, half, replay=False))
        with pytest.warns(UserWarning, match="checkpoint 14 holds no replay"):
            _, state = restore_train_state(saves, jax.eval_shape(lambda: half))
    assert not any(leaf.any() for leaf in jax.tree.leaves(state.learner.replay))
    assert tree_sha256(state._replace(learner=state.learner._replace(replay=()))) == tree_sha256(
        half._replace(learner=half.learner._replace(replay=()))
    )
    learned = [tree_sha256((half.learner.params, half.learner.opt_state, half.learner.target))]
    for _ in range(6):
        state = r2d2.advance(state, 1)
        learned.append(tree_sha256((state.learner.params, state.learner.opt_state, state.learner.target)))
    # 12 sequences are whole after 5 unrolls.
    assert len(set(learned[:5])) == 1
    assert len(set(learned[4:])) == 3


class Compiled(Exception):
    """Carries what was to be trained."""


@pytest.mark.parametrize("saved", [True, False])
def test_a_resume_takes_the_replay_that_is_there_whatever_is_saved_next(
    r2d2, tmp_path, monkeypatch, capsys, saved
):
    state = r2d2.advance(r2d2.begin, 14)
    config = dataclasses.replace(R2D2, checkpoint=dataclasses.replace(R2D2.checkpoint, replay=not saved))
    (tmp_path / "config.toml").write_text(dump_config(config))
    with Checkpointer(tmp_path / "checkpoints") as saves:
        saves.save(14, checkpoint_items(r2d2.agent, state, replay=saved))

    def compile_nothing(*arguments):
        raise Compiled(arguments)

    monkeypatch.setattr(sources, "_compile", compile_nothing)
    with pytest.raises(Compiled) as caught:
        train(config, tmp_path, resume=True)
    (found,) = (argument for argument in caught.value.args[0] if isinstance(argument, TrainState))
    replay = found.learner.replay
    assert tree_sha256(found.learner.params) == tree_sha256(state.learner.params)
    assert (tree_sha256(replay) == tree_sha256(state.learner.replay)) is saved
    assert any(leaf.any() for leaf in jax.tree.leaves(replay)) is saved
    assert ("checkpoint 14 holds no replay" in capsys.readouterr().out) is not saved


@pytest.mark.slow
def test_r2d2_trains_without_saving_its_replay_and_goes_on(tmp_path, capsys):
    config = dataclasses.replace(R2D2, checkpoint=dataclasses.replace(R2D2.checkpoint, replay=False))
    assert train(config, tmp_path) == 0
    assert train(dataclasses.replace(config, total_env_steps=600), tmp_path, resume=True) == 0
    assert capsys.readouterr().out.count("holds no replay") == 1
    items = {path.name for step in (tmp_path / "checkpoints").iterdir() for path in step.iterdir()}
    assert "replay" not in items and {"acting", "learner", "loop"} < items
    with pytest.warns(UserWarning, match="holds no replay"):
        assert read_checkpoint(config, tmp_path)[0] >= 600
    assert len(evaluate_run(tmp_path, num_episodes=6).returns) == 6
    policy = load_policy(tmp_path)
    timestep = TimeStep(jnp.zeros(3, jnp.int8), jnp.zeros(3), jnp.ones(3), jnp.zeros((3, 4, 3)))
    action, _ = policy.step(timestep, policy.initial_state(3))
    assert action.shape == (3,)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_while_compiling_saves_and_ends(tmp_path, monkeypatch, number):
    original = sources._compile

    def compile_and_signal(*arguments):
        os.kill(os.getpid(), number)
        return original(*arguments)

    handler = signal.getsignal(number)
    monkeypatch.setattr(sources, "_compile", compile_and_signal)
    assert train(CATCH, tmp_path) == 0
    assert signal.getsignal(number) is handler
    step, state = read_checkpoint(CATCH, tmp_path)
    assert step == 0 and read_metrics(tmp_path) == []
