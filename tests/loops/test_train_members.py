"""Many runs at once: each equals the run alone, ends where it would, and is a run directory."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from random_length import RandomLength
from small_runs import CATCH, LSTM, read_checkpoint

from zerocopy_envs.errors import UserError
from zerocopy_seed import cli, load_policy
from zerocopy_seed.config import CheckpointConfig, DevicesConfig, EnvConfig, MetricsConfig, R2D2Config
from zerocopy_seed.config_file import dump_config, load_run_config
from zerocopy_seed.config_sweep import make_members
from zerocopy_seed.leaves import is_key, named_leaves, tree_sha256
from zerocopy_seed.loops import train_members as members_module
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics

MANY = dataclasses.replace(
    CATCH,
    env=EnvConfig("random_length:RandomLength", num_envs=4),
    total_env_steps=400,
    seed=5,
    num_seeds=2,
    sweep={"agent": {"learning_rate": [1e-3, 3e-2]}},
)
"""Four members of about 26 updates."""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "many"
    assert train(MANY, directory) == 0
    return directory


def assert_same_run(config, found_dir, expected_dir, tolerance=1e-5):
    """Both made the same lines, and ended in the same state."""
    found_rows, expected_rows = read_metrics(found_dir), read_metrics(expected_dir)
    assert len(found_rows) == len(expected_rows) > 1
    for found, expected in zip(found_rows, expected_rows, strict=True):
        assert found.keys() == expected.keys()
        for key in ("env_steps", "num_updates", "num_episodes"):
            assert found[key] == expected[key]
        for key in expected.keys() - {"wall_s", "env_steps_per_s"}:
            np.testing.assert_allclose(found[key], expected[key], atol=1e-5, rtol=1e-5, err_msg=key)
    found_step, found = read_checkpoint(config, found_dir)
    expected_step, expected = read_checkpoint(config, expected_dir)
    assert found_step == expected_step == expected_rows[-1]["env_steps"]
    found, expected = named_leaves(found), named_leaves(expected)
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        if is_key(leaf):
            leaf, found[name] = jax.random.key_data(leaf), jax.random.key_data(found[name])
        np.testing.assert_allclose(found[name], leaf, atol=tolerance, err_msg=name)


def test_a_member_equals_the_run_alone(run_dir, tmp_path):
    members = make_members(MANY)
    ends = {read_metrics(run_dir / "members" / member.name)[-1]["num_updates"] for member in members}
    assert len(ends) > 1 and min(ends) >= 20
    alone = members[3]
    assert train(alone.config, tmp_path) == 0
    assert_same_run(alone.config, run_dir / "members" / alone.name, tmp_path)


def test_every_member_is_a_run_directory(run_dir):
    names = [
        "learning_rate=0.001,seed=5",
        "learning_rate=0.001,seed=6",
        "learning_rate=0.03,seed=5",
        "learning_rate=0.03,seed=6",
    ]
    assert sorted(path.name for path in (run_dir / "members").iterdir()) == names
    assert load_run_config(run_dir) == MANY
    parameters = set()
    for name, member in zip(names, make_members(MANY), strict=True):
        directory = run_dir / "members" / name
        assert load_run_config(directory) == member.config
        assert (directory / "learning_curve.png").stat().st_size > 0
        step, state = read_checkpoint(member.config, directory)
        assert MANY.total_env_steps <= step < MANY.total_env_steps + 20
        parameters.add(tree_sha256(state.learner.params))
    assert len(parameters) == 4
    assert load_policy(run_dir / "members" / names[3]).spec == RandomLength.spec
    with pytest.raises(
        UserError, match=r"expected one run, found a directory of 4; choose one of .*members$"
    ):
        load_policy(run_dir)


def test_its_journal_is_a_runs(run_dir):
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1]) == ("training", "ended") and kinds.count("checkpoint_saved") == 4
    ends = [read_metrics(path)[-1]["env_steps"] for path in (run_dir / "members").iterdir()]
    assert events[-1]["saved"] and events[-1]["num_members"] == 4 and events[-1]["env_steps"] == sum(ends)


def test_the_summary_is_of_the_members(run_dir):
    summary = json.loads((run_dir / "summary.json").read_text())
    assert [setting["values"] for setting in summary["settings"]] == [
        {"agent.learning_rate": 1e-3},
        {"agent.learning_rate": 3e-2},
    ]
    for setting in summary["settings"]:
        for name, value in zip(setting["members"], setting["returns"], strict=True):
            rows = read_metrics(run_dir / "members" / name)
            last = [row for row in rows if row["env_steps"] > 0.9 * rows[-1]["env_steps"]]
            total = sum(row["num_episodes"] for row in last)
            assert value == pytest.approx(
                sum(row["episode_return"] * row["num_episodes"] for row in last) / total
            )
        assert setting["return_iqm"] == pytest.approx(np.mean(setting["returns"]))  # of two, nothing is cut
        assert setting["return_iqm_low"] == pytest.approx(min(setting["returns"]))
        assert setting["return_iqm_high"] == pytest.approx(max(setting["returns"]))
    assert (run_dir / "summary.png").stat().st_size > 0


@pytest.mark.slow
def test_a_resumed_directory_equals_one_that_was_never_stopped(run_dir, tmp_path, capfd):
    short = dataclasses.replace(MANY, total_env_steps=150)
    assert train(short, tmp_path) == 0
    output = capfd.readouterr().out
    assert "4 members in" in output and "saved 4 members" in output
    assert "env_steps 6" in output and "/600 (" in output and "(worst " in output and ", best " in output
    assert train(MANY, tmp_path, resume=True) == 0
    assert "resuming" in capfd.readouterr().out
    for member in make_members(MANY):
        states = [
            read_checkpoint(member.config, path / "members" / member.name) for path in (run_dir, tmp_path)
        ]
        assert states[0][0] == states[1][0]
        assert tree_sha256(states[0][1]) == tree_sha256(states[1][1])

    assert train(MANY, tmp_path, resume=True) == 0
    assert capfd.readouterr().out.endswith("total_env_steps = 400: nothing to do\n")
    with pytest.raises(UserError, match=r"^sweep\.agent\.learning_rate: expected \[0\.001, 0\.03\]"):
        train(dataclasses.replace(MANY, sweep={}), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--env.place", "actors"], "num_seeds: expected one run where environments are in actors, found 4"),
        (["--sources.device", "0.5", "--sources.actors", "0.5"], "num_seeds: expected one run where env"),
        (["--devices.learner", "3"], "devices.learner: expected a divisor of the 4 runs"),
        (["--sweep.agent.unroll-length", "5", "10"], "sweep.agent.unroll_length: expected a float setting"),
        (["--agent.name", "vtrace", "--sweep.agent.learning-rate", "-1"], "sweep.agent.learning_rate"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_compiles(tmp_path, monkeypatch, capfd, flags, named):
    def must_not_run(*_, **__):
        raise AssertionError("compiled")

    monkeypatch.setattr(members_module, "init_members", must_not_run)
    (tmp_path / "config.toml").write_text(dump_config(MANY))
    run_dir = tmp_path / "run"
    assert cli.main(["train", str(tmp_path / "config.toml"), "--run-dir", str(run_dir), *flags]) == 2
    errors = capfd.readouterr().err
    assert errors.count("\n") == 1 and named in errors
    assert not run_dir.exists()


def test_memory_is_that_of_all_members(tmp_path, monkeypatch):
    monkeypatch.setattr("zerocopy_seed.loops.memory.available_memory", lambda: 4 * 10**9)
    config = dataclasses.replace(
        CATCH,
        agent=R2D2Config(unroll_length=1, period=1, sequence_length=1, replay_capacity=2 * 10**6),
        checkpoint=CheckpointConfig(replay=False),
        num_seeds=64,
    )
    with pytest.raises(
        UserError, match=r"^agent\.replay_capacity: .*in all of the 64 members; .*train fewer"
    ):
        train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_curves_are_drawn_together(run_dir, tmp_path, capsys):
    member = run_dir / "members" / "learning_rate=0.03,seed=6"
    picture = tmp_path / "both.svg"
    assert cli.main(["plot", str(run_dir), str(member), "--output", str(picture)]) == 0
    assert capsys.readouterr().out == f"{picture}: 3 curves of 2 run directories\n"
    assert picture.read_text().startswith("<?xml")


@pytest.mark.slow
def test_members_outlive_one_that_takes_no_checkpoint(run_dir, tmp_path, capfd):
    first, *others = make_members(MANY)
    (tmp_path / "members" / first.name).mkdir(parents=True)
    (tmp_path / "members" / first.name / "checkpoints").write_text("in the way")
    assert train(MANY, tmp_path) == 1
    errors = capfd.readouterr().err
    assert f"the last checkpoint of 1 of 4 members could not be saved: {first.name}\n" in errors
    assert "Traceback" not in errors
    for member in others:
        states = [
            read_checkpoint(member.config, path / "members" / member.name) for path in (run_dir, tmp_path)
        ]
        assert tree_sha256(states[0][1]) == tree_sha256(states[1][1])


@pytest.mark.slow
def test_evaluate_takes_a_member(run_dir, tmp_path):
    result = evaluate_run(run_dir / "members" / "learning_rate=0.03,seed=6", num_episodes=8)
    assert len(result.returns) == 8 and result.checkpoint_step >= 400


R2D2 = dataclasses.replace(
    MANY,
    agent=R2D2Config(
        unroll_length=5,
        burn_in=5,
        sequence_length=5,
        period=5,
        batch_size=4,
        replay_capacity=40,
        min_replay=8,
        target_update_period=3,
    ),
    network=LSTM,
    sweep={"agent": {"learning_rate": [1e-3, 1e-2], "priority_eta": [0.5]}},
)
ADAPTIVE = dataclasses.replace(
    MANY,
    agent=dataclasses.replace(MANY.agent, adaptive_entropy=True, num_minibatches=2, num_passes=2),
    num_seeds=1,
    sweep={"agent": {"entropy_cost": [1e-3, 1e-1], "entropy_adjustment_speed": [1.0, 20.0]}},
)


@pytest.mark.slow
@pytest.mark.parametrize("config", [R2D2, ADAPTIVE], ids=["r2d2", "adaptive"])
def test_members_of_other_agents_equal_the_runs_alone(config, tmp_path):
    assert train(config, tmp_path / "many") == 0
    for member in make_members(config)[1::2]:
        assert train(member.config, tmp_path / member.name) == 0
        assert_same_run(member.config, tmp_path / "many" / "members" / member.name, tmp_path / member.name)


@pytest.mark.slow
@pytest.mark.parametrize("config", [MANY, R2D2], ids=["vtrace", "r2d2"])
def test_members_spread_over_devices_are_the_same_and_go_on_there(config, tmp_path):
    two = dataclasses.replace(config, devices=DevicesConfig(2))
    assert train(config, tmp_path / "one") == 0
    assert train(two, tmp_path / "two") == 0
    assert train(dataclasses.replace(config, total_env_steps=150), tmp_path / "moved") == 0
    assert train(two, tmp_path / "moved", resume=True) == 0
    for member in make_members(config):
        one = tmp_path / "one" / "members" / member.name
        for other in ("two", "moved"):
            other_dir = tmp_path / other / "members" / member.name
            states = [read_checkpoint(member.config, path)[1].learner.params for path in (one, other_dir)]
            for a, b in zip(*map(jax.tree.leaves, states), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)
        assert_same_run(member.config, tmp_path / "two" / "members" / member.name, one)


@pytest.mark.slow
def test_sigterm_saves_all_and_a_resume_goes_on(tmp_path):
    config = dataclasses.replace(
        MANY, total_env_steps=10**12, metrics=MetricsConfig(every_env_steps=2_000, tensorboard=False)
    )
    (tmp_path / "config.toml").write_text(dump_config(config))
    root = pathlib.Path(__file__).parents[2]
    paths = [root, root / "envs", root / "tests"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    words = ["train", tmp_path / "config.toml", "--run-dir", tmp_path / "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "zerocopy_seed.cli", *map(str, words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    members = make_members(config)
    deadline = time.monotonic() + 200
    while not all(read_metrics(tmp_path / "run" / "members" / member.name) for member in members):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0 and "Traceback" not in errors and "SIGTERM" in errors, errors
    assert "saved 4 members" in output
    ends = []
    for member in members:
        step, _ = read_checkpoint(member.config, tmp_path / "run" / "members" / member.name)
        assert step == read_metrics(tmp_path / "run" / "members" / member.name)[-1]["env_steps"]
        ends.append(step)
    longer = dataclasses.replace(config, total_env_steps=max(ends) + 100)
    assert train(longer, tmp_path / "run", resume=True) == 0
    for member in members:
        step, _ = read_checkpoint(member.config, tmp_path / "run" / "members" / member.name)
        assert step >= longer.total_env_steps
