import dataclasses
import gzip
import json
import os
import shutil
import socket
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import CATCH, LSTM, read_checkpoint

from zerocopy_envs.errors import UserError
from zerocopy_seed import cli, journal
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import CheckpointConfig, DevicesConfig, MetricsConfig, R2D2Config
from zerocopy_seed.config_file import dump_config, load_run_config
from zerocopy_seed.leaves import tree_sha256
from zerocopy_seed.loops import sources
from zerocopy_seed.loops import train as train_module
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.record import warn_once_diverged
from zerocopy_seed.loops.run_checkpoint import checkpoint_items
from zerocopy_seed.loops.run_lock import lock_run_dir
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics
from zerocopy_seed.ops.counters import as_int, make_counter

STEPS_PER_UPDATE = CATCH.env.num_envs * CATCH.agent.unroll_length


def replace_metrics(config, every_env_steps):
    return dataclasses.replace(config, metrics=MetricsConfig(every_env_steps, tensorboard=False))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "catch"
    assert train(CATCH, directory) == 0
    return directory


def test_a_run_directory_holds_what_it_should(run_dir):
    assert load_run_config(run_dir) == CATCH
    assert (run_dir / "learning_curve.png").stat().st_size > 0
    rows = read_metrics(run_dir)
    assert len(rows) == 3
    for row in rows:
        assert {"env_steps", "num_updates", "wall_s", "env_steps_per_s", "num_episodes"} <= row.keys()
        assert {"policy_loss", "value_loss", "entropy", "importance_ratio", "grad_norm"} <= row.keys()
        assert row["env_steps_per_s"] > 0
    step, state = read_checkpoint(CATCH, run_dir)
    assert step == as_int(state.learner.env_steps) == rows[-1]["env_steps"]
    assert as_int(state.learner.num_updates) == rows[-1]["num_updates"]
    noted = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert [event["env_steps"] for event in noted if event["event"] == "checkpoint_saved"] == [step]


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_a_port_for_metrics_that_is_taken_is_refused_before_anything_is_written(tmp_path, num_seeds):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = dataclasses.replace(CATCH, num_seeds=num_seeds, metrics=MetricsConfig(port=port))
        with pytest.raises(UserError, match=f"metrics.port: expected a port that is free, .*{port}"):
            train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_stops_at_the_first_update_at_or_past_the_total(run_dir, tmp_path):
    end = read_metrics(run_dir)[-1]
    assert end["env_steps"] - STEPS_PER_UPDATE < CATCH.total_env_steps <= end["env_steps"]
    # Exactly reached is reached; one more step is one more update.
    for total, more in ((end["env_steps"], 0), (end["env_steps"] + 1, 1)):
        assert train(dataclasses.replace(CATCH, total_env_steps=total), tmp_path / str(total)) == 0
        assert read_metrics(tmp_path / str(total))[-1]["num_updates"] == end["num_updates"] + more


def test_episode_figures_only_where_an_episode_ended(tmp_path):
    # Two steps an update, a line an update, episodes of 9 steps that all begin at once.
    config = replace_metrics(
        dataclasses.replace(
            CATCH,
            env=dataclasses.replace(CATCH.env, settings={}),
            agent=dataclasses.replace(CATCH.agent, unroll_length=2),
            total_env_steps=160,
        ),
        1,
    )
    assert train(config, tmp_path) == 0
    rows = read_metrics(tmp_path)
    assert [row["num_updates"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["num_episodes"] for row in rows[:10]] == [0, 0, 0, 0, 4, 0, 0, 0, 0, 4]
    for row in rows:
        ended = row["num_episodes"] > 0
        assert ("episode_return" in row) == ("episode_length" in row) == ended
        if ended:
            assert row["episode_length"] == 9.0
            assert row["episode_return"] in (-1.0, -0.5, 0.0, 0.5, 1.0)
    # The step after a LAST is no transition: the tenth update of every slot has one row of nothing.
    assert rows[3]["env_steps"] == 32 and rows[4]["env_steps"] == 36


@pytest.mark.parametrize(
    "every", [1, pytest.param(7, marks=pytest.mark.slow), pytest.param(10**9, marks=pytest.mark.slow)]
)
def test_how_often_is_logged_changes_nothing_else(run_dir, tmp_path, every):
    assert train(replace_metrics(CATCH, every), tmp_path) == 0
    rows = read_metrics(tmp_path)
    expected_rows = read_metrics(run_dir)
    assert sum(row["num_episodes"] for row in rows) == sum(row["num_episodes"] for row in expected_rows)
    assert rows[-1]["env_steps"] == expected_rows[-1]["env_steps"]
    assert tree_sha256(read_checkpoint(CATCH, tmp_path)[1]) == tree_sha256(read_checkpoint(CATCH, run_dir)[1])


def test_nothing_compiles_after_the_first_line(tmp_path, monkeypatch):
    compiled, at_line = [], []

    def listen(event: str, duration_secs: float, **_: object):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    update = train_module.Progress.update

    def update_and_count(self, row):
        at_line.append(len(compiled))
        update(self, row)

    monkeypatch.setattr(train_module.Progress, "update", update_and_count)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        in_run = []
        for total in (100, 1_500):
            jax.clear_caches()  # nothing was compiled for another test
            before = len(compiled)
            config = dataclasses.replace(replace_metrics(CATCH, 30), total_env_steps=total)
            at_line.clear()
            assert train(config, tmp_path / str(total)) == 0
            assert at_line[0] > before
            in_run.append(at_line[-1] - before)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(at_line) > 40 and at_line[-1] == at_line[0]
    assert in_run[0] == in_run[1] > 0


def test_a_directory_that_holds_a_run_is_kept(run_dir):
    before = (run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(
        UserError, match=r"expected a new directory, found one that holds a run; add --resume"
    ):
        train(CATCH, run_dir)
    assert (run_dir / "metrics.jsonl").read_bytes() == before


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(UserError, match="expected a run to resume"):
        train(CATCH, tmp_path, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_resume_may_not_change_the_mathematics(run_dir):
    changed = dataclasses.replace(CATCH, agent=dataclasses.replace(CATCH.agent, learning_rate=5e-3))
    before = (run_dir / "config.toml").read_bytes()
    with pytest.raises(UserError, match=r"^agent\.learning_rate: expected 0\.01.*found 0\.005"):
        train(changed, run_dir, resume=True)
    assert (run_dir / "config.toml").read_bytes() == before


@pytest.mark.slow
def test_a_resume_may_change_the_rest(tmp_path):
    assert train(dataclasses.replace(CATCH, total_env_steps=100), tmp_path) == 0
    changed = dataclasses.replace(
        CATCH,
        total_env_steps=250,
        metrics=MetricsConfig(every_env_steps=30, tensorboard=True),
        checkpoint=CheckpointConfig(every_s=0.0, max_to_keep=1),
    )
    assert train(changed, tmp_path, resume=True) == 0
    assert load_run_config(tmp_path) == changed
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [
        str(read_metrics(tmp_path)[-1]["env_steps"])
    ]
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_a_resume_at_or_past_the_total_does_nothing(run_dir, monkeypatch, capfd):
    def must_not_run(*_):
        raise AssertionError("compiled")

    monkeypatch.setattr(sources, "_compile", must_not_run)
    monkeypatch.setattr(train_module, "compile_once", must_not_run)
    at = read_metrics(run_dir)[-1]["env_steps"]

    def written():
        return {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.name != ".lock"}

    before = written()
    for total in (at, 100):
        assert train(dataclasses.replace(CATCH, total_env_steps=total), run_dir, resume=True) == 0
        output = capfd.readouterr().out
        past = f"at or past total_env_steps = {total}"
        assert output == f"{run_dir} is at {at} env_steps, {past}: nothing to do\n"
    assert written() == before


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--env.name", "gymnax:CartPole-v2"], "CartPole-v1"),
        (["--env.name", "nosuchsuite:Thing"], "nosuchsuite"),
        (["--env.num-envs", "6", "--agent.num-minibatches", "4"], "env.num_envs"),
        (["--network.torso", "minatar_conv"], "minatar_conv"),
        (["--env.settings.rwos", "4"], "rows"),
        (
            ["--devices.learner", "99", "--agent.num-shards", "99", "--env.num-envs", "99"],
            "devices.learner",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_compiles(tmp_path, monkeypatch, capfd, flags, named):
    def must_not_run(*_):
        raise AssertionError("compiled")

    monkeypatch.setattr(sources, "_compile", must_not_run)
    monkeypatch.setattr(train_module, "compile_once", must_not_run)
    (tmp_path / "config.toml").write_text(dump_config(CATCH))
    run_dir = tmp_path / "run"
    assert cli.main(["train", str(tmp_path / "config.toml"), "--run-dir", str(run_dir), *flags]) == 2
    errors = capfd.readouterr().err
    assert errors.count("\n") == 1 and named in errors
    assert not run_dir.exists()


def test_training_outlives_a_directory_that_takes_no_checkpoint(run_dir, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(journal, "_AT_ONCE", 1)  # why the last one fails is said even if it is not noted
    (tmp_path / "checkpoints").write_text("in the way")
    config = dataclasses.replace(CATCH, checkpoint=CheckpointConfig(every_s=0.0))
    assert train(config, tmp_path) == 1
    errors = capfd.readouterr().err
    assert errors.count("was not saved") == 2  # the first of many, and the last
    assert "the last checkpoint could not be saved" in errors and "Traceback" not in errors
    assert read_metrics(tmp_path)[-1]["num_failed_saves"] > 1
    assert read_metrics(tmp_path)[-1]["env_steps"] == read_metrics(run_dir)[-1]["env_steps"]


@pytest.mark.slow
def test_a_damaged_last_checkpoint_is_written_anew(run_dir, tmp_path, capfd):
    directory = tmp_path / "run"
    shutil.copytree(run_dir, directory)
    longer = dataclasses.replace(CATCH, total_env_steps=CATCH.total_env_steps + 100)
    assert train(longer, directory, resume=True) == 0
    end, whole = read_checkpoint(CATCH, directory)
    manifest = directory / "checkpoints" / str(end) / "manifest.json"
    manifest.write_text(manifest.read_text()[:-9])
    capfd.readouterr()
    assert train(longer, directory, resume=True) == 0
    assert str(end) in capfd.readouterr().err
    assert tree_sha256(read_checkpoint(CATCH, directory, end)[1]) == tree_sha256(whole)


def test_a_run_directory_has_one_trainer(tmp_path):
    with lock_run_dir(tmp_path), pytest.raises(UserError, match="another training process"):
        train(CATCH, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_divergence_is_said_once(capfd):
    row = {"env_steps": 5, "grad_norm": float("nan"), "value": 1.0}
    assert warn_once_diverged(row, False)
    assert warn_once_diverged(row, True)
    assert not warn_once_diverged({"env_steps": 5, "value": 1.0}, False)
    errors = capfd.readouterr().err
    assert errors.count("\n") == 1 and errors.startswith("grad_norm: not finite at 5 env_steps")


def test_a_reader_that_has_gone_does_not_end_the_run(tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert train(CATCH, tmp_path) == 0
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    assert read_checkpoint(CATCH, tmp_path)[0] >= CATCH.total_env_steps


@pytest.mark.parametrize("begin", [pytest.param(2**31 - 100, marks=pytest.mark.slow), 2**32 - 100])
def test_counters_go_on_past_32_bits(run_dir, tmp_path, begin):
    # A run that has come that far, resumed.
    config = dataclasses.replace(CATCH, total_env_steps=begin + 300)
    (tmp_path / "config.toml").write_text(dump_config(config))
    _, state = read_checkpoint(CATCH, run_dir)
    learner = state.learner._replace(env_steps=make_counter(begin), num_updates=make_counter(begin - 5))
    agent = make_agent(
        config.agent, config.network, make_environment(config.env).spec, num_slots=config.env.num_envs
    )
    with Checkpointer(tmp_path / "checkpoints") as saves:
        saves.save(begin, checkpoint_items(agent, state._replace(learner=learner)))
    assert train(config, tmp_path, resume=True) == 0
    rows = read_metrics(tmp_path)
    assert begin < rows[0]["env_steps"] and rows[-1]["env_steps"] >= begin + 300
    for earlier, later in zip([{"env_steps": begin, "num_updates": begin - 5}, *rows], rows, strict=False):
        updates = later["num_updates"] - earlier["num_updates"]
        assert 0 < updates < 40  # a run so long has few lines
        assert 0 < later["env_steps"] - earlier["env_steps"] <= updates * STEPS_PER_UPDATE
        assert later["env_steps_per_s"] > 0
    step, state = read_checkpoint(config, tmp_path)
    assert step == rows[-1]["env_steps"] == as_int(state.learner.env_steps)


SHARDED = {
    "vtrace": dataclasses.replace(
        CATCH, agent=dataclasses.replace(CATCH.agent, num_shards=2, num_minibatches=2)
    ),
    "r2d2": dataclasses.replace(
        CATCH,
        agent=R2D2Config(
            unroll_length=5,
            burn_in=5,
            sequence_length=5,
            period=5,
            num_shards=2,
            batch_size=4,
            replay_capacity=40,
            min_replay=8,
            target_update_period=3,
        ),
        network=LSTM,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("one", SHARDED.values(), ids=SHARDED)
def test_two_devices_train_as_one_and_take_over_from_one(tmp_path, one):
    two = dataclasses.replace(one, devices=DevicesConfig(2))
    runs = {"one": tmp_path / "one", "two": tmp_path / "two", "moved": tmp_path / "moved"}
    assert train(one, runs["one"]) == 0
    assert train(two, runs["two"]) == 0
    assert train(dataclasses.replace(two, total_env_steps=150), runs["moved"]) == 0
    assert train(one, runs["moved"], resume=True) == 0

    rows = {name: read_metrics(directory) for name, directory in runs.items()}
    states = {name: read_checkpoint(one, directory)[1] for name, directory in runs.items()}
    for name in ("two", "moved"):
        for a, b in zip(jax.tree.leaves(states["one"]), jax.tree.leaves(states[name]), strict=True):
            if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            np.testing.assert_allclose(a, b, atol=1e-5, err_msg=name)
    assert len(rows["one"]) == len(rows["two"])
    for expected, found in zip(rows["one"], rows["two"], strict=True):
        assert expected.keys() == found.keys()
        for key in expected.keys() - {"wall_s", "env_steps_per_s"}:
            np.testing.assert_allclose(found[key], expected[key], atol=1e-5, rtol=1e-5, err_msg=key)

    # And from one device to two.
    longer = dataclasses.replace(two, total_env_steps=400)
    assert train(longer, runs["one"], resume=True) == 0
    assert train(longer, runs["two"], resume=True) == 0
    ends = [read_checkpoint(one, runs[name])[1].learner.params for name in ("one", "two")]
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_catch_is_learned(tmp_path):
    config = replace_metrics(
        dataclasses.replace(
            CATCH,
            env=dataclasses.replace(CATCH.env, num_envs=32),
            agent=dataclasses.replace(CATCH.agent, unroll_length=8),
            network=dataclasses.replace(CATCH.network, hidden_sizes=(32,)),
            total_env_steps=30_000,
        ),
        5_000,
    )
    assert train(config, tmp_path) == 0
    rows = read_metrics(tmp_path)
    assert rows[0]["episode_return"] < 0.7 < 0.9 < rows[-1]["episode_return"]
    assert evaluate_run(tmp_path, num_episodes=64).returns.mean() >= 0.95


def test_a_profile_is_a_trace_of_operations(tmp_path, capsys):
    assert train(CATCH, tmp_path, profile=True) == 0
    assert f"profile: {tmp_path / 'perfetto_trace.json.gz'}" in capsys.readouterr().out
    with gzip.open(tmp_path / "perfetto_trace.json.gz") as trace:
        events = json.load(trace)["traceEvents"]
    operations = {event["name"] for event in events if event.get("ph") == "X"}
    assert any("dot" in name or "fusion" in name for name in operations)
    assert not list(tmp_path.glob(".profile-*"))
    assert read_metrics(tmp_path)[-1]["env_steps"] >= CATCH.total_env_steps
