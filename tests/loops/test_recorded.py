"""A run's trajectories on disk, and learning from them without the environment."""

import dataclasses
import errno
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import CATCH, LSTM, MLP

from zerocopy_envs import registry
from zerocopy_envs.errors import UserError
from zerocopy_envs.types import TimeStep
from zerocopy_seed import cli
from zerocopy_seed.agents import make_agent
from zerocopy_seed.agents.stand_ins import count_stand_ins
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import BridgeConfig, DevicesConfig, EvaluationConfig, R2D2Config, RecordConfig
from zerocopy_seed.config_file import dump_config, load_run_config
from zerocopy_seed.experience import Place, RecordReader, writer
from zerocopy_seed.leaves import tree_sha256
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.on_device import init_train_state
from zerocopy_seed.loops.recorded import init_from_record, with_padding
from zerocopy_seed.loops.run_checkpoint import restore_train_state
from zerocopy_seed.loops.run_dir import check_run_dir
from zerocopy_seed.loops.run_lock import lock_directory
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics
from zerocopy_seed.types import RecurrentState, Trajectory

PLAYED = dataclasses.replace(
    CATCH,
    agent=R2D2Config(
        unroll_length=5,
        sequence_length=5,
        period=5,
        batch_size=4,
        replay_capacity=40,
        min_replay=8,
        target_update_period=3,
        learning_rate=1e-2,
    ),
)
RECURRENT = dataclasses.replace(PLAYED, agent=dataclasses.replace(PLAYED.agent, burn_in=5), network=LSTM)


def learned_from(record, config=PLAYED, **changes):
    return dataclasses.replace(config, source=f"recorded:{record}", **changes)


def read_state(config, run_dir, step=None):
    """The TrainState of a checkpoint."""
    environment = make_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)

    def init():
        if config.source:
            return init_from_record(agent, config.seed)
        return init_train_state(agent, environment, config.seed, config.env.num_envs)

    with Checkpointer(run_dir / "checkpoints") as saves:
        return restore_train_state(saves, jax.eval_shape(init), step)[1]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run that was recorded: its directory, with `record` in it."""
    run_dir = tmp_path_factory.mktemp("runs") / "played"
    assert train(dataclasses.replace(PLAYED, record=RecordConfig(str(run_dir / "record"))), run_dir) == 0
    return run_dir


@pytest.fixture(scope="module")
def learned(played):
    """A run of as many updates that learned from that."""
    run_dir = played.parent / "learned"
    assert train(learned_from(played / "record"), run_dir) == 0
    return run_dir


@pytest.mark.slow
def test_the_learner_cannot_tell_a_record_from_the_environment(played, learned):
    assert_same_learner(PLAYED, played, learned)


@pytest.mark.slow
def test_stored_states_of_the_core_come_from_the_record(tmp_path):
    record = tmp_path / "record"
    played, learned = tmp_path / "played", tmp_path / "learned"
    assert train(dataclasses.replace(RECURRENT, record=RecordConfig(str(record))), played) == 0
    assert train(learned_from(record, RECURRENT), learned) == 0
    assert_same_learner(RECURRENT, played, learned)
    assert any(
        np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(read_state(RECURRENT, played).learner.replay.core)
    )


def assert_same_learner(config, played, learned):
    """The same replay, priorities, parameters, optimiser, counters and key."""
    expected, found = (
        read_state(config, played).learner,
        read_state(learned_from("x", config), learned).learner,
    )
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, leaf), other in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True
    ):
        name = jax.tree_util.keystr(path)
        if name == ".key":
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        np.testing.assert_allclose(other, leaf, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow  # the program that does not record takes as long to compile
def test_recording_changes_nothing(played, tmp_path):
    assert train(PLAYED, tmp_path) == 0
    assert tree_sha256(read_state(PLAYED, tmp_path)) == tree_sha256(read_state(PLAYED, played))
    rows, expected = read_metrics(tmp_path), read_metrics(played)
    timed = ("wall_s", "env_steps_per_s")
    assert [{key: row[key] for key in row if key not in timed} for row in rows] == [
        {key: row[key] for key in row if key not in timed} for row in expected
    ]


@pytest.mark.slow
def test_it_is_a_run_like_any_other(played, learned):
    assert load_run_config(learned).source == f"recorded:{played / 'record'}"
    rows = read_metrics(learned)
    assert rows[-1]["env_steps"] == read_metrics(played)[-1]["env_steps"]
    assert rows[-1]["record_epochs"] == 1.0
    assert {"loss", "grad_norm", "replay_sequences"} <= rows[-1].keys()
    assert train(load_run_config(learned), learned, resume=True) == 0  # nothing to do
    assert evaluate_run(learned, num_episodes=2).params_sha256


@pytest.mark.slow
def test_it_is_evaluated_while_it_learns(played, tmp_path):
    evaluation = EvaluationConfig(every_env_steps=100, episodes=4)
    assert train(learned_from(played / "record", evaluation=evaluation), tmp_path) == 0
    assert len([row for row in read_metrics(tmp_path) if "evaluation_return" in row]) >= 2


@pytest.mark.slow
def test_no_environment_is_made_and_a_resume_goes_on_in_the_record(played, learned, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("an environment was made")

    monkeypatch.setattr(registry, "make", refuse)
    total = read_metrics(learned)[-1]["env_steps"]
    # Over the record's end, as one run and as two.
    config = learned_from(played / "record", total_env_steps=2 * total)
    straight, stopped = learned.parent / "straight", learned.parent / "stopped"
    assert train(config, straight) == 0
    assert train(dataclasses.replace(config, total_env_steps=total // 2), stopped) == 0
    assert train(config, stopped, resume=True) == 0
    monkeypatch.undo()
    end = read_state(config, straight)
    place: Any = end.actor
    assert int(place.epoch) == 2 and int(place.round) == 0
    assert tree_sha256(end) == tree_sha256(read_state(config, stopped))


def test_the_record_holds_what_was_played(played):
    num_updates = read_metrics(played)[-1]["num_updates"]
    with RecordReader(played / "record") as reader:
        assert reader.index.num_rounds == num_updates
        rounds = [reader.read(Place(0, number)) for number in range(num_updates)]
    assert all(found.is_due for found in rounds)
    before = None
    num_steps = 0
    for found in rounds:
        arrays = found.arrays
        step_type, reward = arrays[".timestep.step_type"], arrays[".timestep.reward"]
        assert step_type.shape == (6, 4) and arrays[".action"].shape == (5, 4)
        assert (arrays[".slot"] == range(4)).all()
        assert (arrays[".continues"] == (before is not None)).all()
        assert (reward[step_type == 0] == 0).all()
        if before is not None:
            np.testing.assert_array_equal(
                before[".timestep.observation"][-1], arrays[".timestep.observation"][0]
            )
        num_steps += int((step_type[1:] != 0).sum())
        before = arrays
    assert num_steps == read_metrics(played)[-1]["env_steps"]


@pytest.mark.slow  # what the writer does then is in the default run
def test_a_second_run_is_appended(played, tmp_path):
    first = RecordReader(played / "record").index.num_rounds
    config = dataclasses.replace(
        PLAYED, seed=1, total_env_steps=40, record=RecordConfig(str(played.parent / "twice"))
    )
    for seed in (1, 2):
        assert train(dataclasses.replace(config, seed=seed), tmp_path / str(seed)) == 0
    index = RecordReader(played.parent / "twice").index
    assert index.num_rounds == sum(read_metrics(tmp_path / seed)[-1]["num_updates"] for seed in "12") < first
    with RecordReader(played.parent / "twice") as reader:
        gaps = [
            not reader.read(Place(0, number)).arrays[".continues"].any() for number in range(index.num_rounds)
        ]
    assert np.flatnonzero(gaps).tolist() == [0, index.shards[0].num_rounds]


@pytest.mark.slow  # likewise
def test_a_full_disk_does_not_end_a_run(played, tmp_path, monkeypatch, capsys):
    def full(file, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer.np, "savez", full)
    config = dataclasses.replace(PLAYED, record=RecordConfig(str(tmp_path / "record"), shard_mb=0.01))
    assert train(config, tmp_path / "run") == 0
    errors = capsys.readouterr().err
    assert errors.count("No space left on device") == 1 and "training goes on" in errors
    assert tree_sha256(read_state(PLAYED, tmp_path / "run")) == tree_sha256(read_state(PLAYED, played))


@pytest.mark.parametrize(
    "words, message",
    [
        (["--source", "recorded:nowhere"], "record nowhere: expected a record of some unrolls, found none"),
        (["--source", "recorded:"], "source: expected recorded:DIR, or nothing, found 'recorded:'"),
        (["--source", "DIR"], "source: expected recorded:DIR, or nothing"),
        (
            ["--env.num-envs", "8"],
            "env.num_envs: expected 4, as in record DIR, found 8; set --env.num-envs 4",
        ),
        (["--agent.unroll-length", "10", "--agent.period", "10"], "agent.unroll_length: expected 5"),
        (["--env.name", "gymnax:CartPole-v1"], "env.name: expected 'zerocopy:Catch', as in record DIR"),
        (["--env.settings.rows", "5"], "env.settings: expected {'rows': 4, 'columns': 3}"),
        (
            ["--network.frame-stack", "2"],
            "trajectory.recurrent.frames: expected no such array, as in record DIR",
        ),
        (["--record.dir", "more"], "record.dir: expected nothing with source = 'recorded:DIR'"),
        (["--num-seeds", "2"], "source = 'recorded:DIR': expected one run, found many"),
        (
            ["--sources.device", "0.5", "--sources.actors", "0.5"],
            "source = 'recorded:DIR': expected one source",
        ),
        (["--devices.learner", "2", "--agent.num-shards", "2"], "devices.learner: expected 1"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(played, tmp_path, words, message, capsys):
    record = str(played / "record")
    config = tmp_path / "config.toml"
    config.write_text(dump_config(learned_from(record)))
    words = [word.replace("DIR", record) if word == "DIR" else word for word in words]
    assert cli.main(["train", str(config), "--run-dir", str(tmp_path / "run"), *words]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(message.replace("DIR", record) if "recorded:DIR, or" not in message else message)
    assert errors.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_padding_of_older_records_is_no_stand_in():
    firsts = TimeStep(jnp.zeros((3, 2), jnp.int8), jnp.zeros((3, 2)), jnp.zeros((3, 2)), ())
    nothing: Any = ()
    slot, continues = jnp.array([0, 2]), jnp.zeros(2, bool)
    trajectory = Trajectory(firsts, nothing, (), RecurrentState((), (), nothing), slot, continues)
    assert count_stand_ins(with_padding(trajectory), None) == 2


def test_v_trace_is_refused(played, tmp_path, capsys):
    config = tmp_path / "config.toml"
    config.write_text(dump_config(CATCH))
    words = [
        "train",
        str(config),
        "--run-dir",
        str(tmp_path / "run"),
        "--source",
        f"recorded:{played / 'record'}",
    ]
    assert cli.main(words) == 2
    errors = capsys.readouterr().err
    assert "found agent.name = 'vtrace', which learns on-policy; set agent.name = 'r2d2'" in errors
    assert errors.count("\n") == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"network": dataclasses.replace(MLP, core="gru")},
            "trajectory.recurrent.core: expected no such array",
        ),
        ({"agent": CATCH.agent}, "agent.name: expected 'r2d2', as in .*, found 'vtrace'"),
    ],
)
def test_a_record_that_does_not_fit_is_not_appended_to(played, tmp_path, changes, message):
    record = played / "record"
    before = {path: path.read_bytes() for path in record.iterdir()}
    config = dataclasses.replace(PLAYED, record=RecordConfig(str(record)), **changes)
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run")
    assert {path: path.read_bytes() for path in record.iterdir()} == before
    assert not (tmp_path / "run").exists()


def test_a_record_that_another_process_writes_is_left_alone_and_so_is_the_run_directory(tmp_path):
    record = tmp_path / "record"
    record.mkdir()
    config = dataclasses.replace(PLAYED, record=RecordConfig(str(record)))
    with lock_directory(record, "it", "records", "recording"), pytest.raises(UserError, match="record.dir"):
        train(config, tmp_path / "run")
    blocked = dataclasses.replace(PLAYED, record=RecordConfig(str(tmp_path / "file" / "record")))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a directory that can be made"):
        train(blocked, tmp_path / "run")
    check_run_dir(PLAYED, tmp_path / "run", resume=False)  # nothing is there that another try would meet


@pytest.mark.slow
def test_a_shard_that_breaks_during_training_ends_it_with_a_checkpoint(
    played, learned, tmp_path, monkeypatch, capsys
):
    read, calls = RecordReader.read, []

    def breaks(self, place):
        calls.append(place)
        if len(calls) > 8:
            raise UserError("record x", expected="intact shards", found="000001.npz: missing")
        return read(self, place)

    monkeypatch.setattr(RecordReader, "read", breaks)
    config = learned_from(played / "record")
    assert train(config, tmp_path) == 1
    assert "record x: expected intact shards, found 000001.npz: missing" in capsys.readouterr().err
    place: Any = read_state(config, tmp_path).actor
    assert int(place.round) == 7
    monkeypatch.undo()
    assert train(config, tmp_path, resume=True) == 0
    assert tree_sha256(read_state(config, tmp_path)) == tree_sha256(read_state(config, learned))


@pytest.mark.slow
@pytest.mark.parametrize("max_policy_lag", [0.0, math.inf])
def test_what_actors_play_is_recorded_and_learned_from(tmp_path, max_policy_lag):
    record = tmp_path / "record"
    config = dataclasses.replace(PLAYED, env=dataclasses.replace(PLAYED.env, place="actors"))
    bridge = BridgeConfig(local_actors=2, max_policy_lag=max_policy_lag)
    played = dataclasses.replace(config, bridge=bridge, record=RecordConfig(str(record)))
    assert train(played, tmp_path / "played") == 0
    total = read_metrics(tmp_path / "played")[-1]["env_steps"]
    assert train(learned_from(record, config, total_env_steps=total), tmp_path / "learned") == 0
    rows = [read_metrics(tmp_path / name)[-1] for name in ("played", "learned")]
    assert rows[0]["num_updates"] == rows[1]["num_updates"] > 10 and rows[1]["env_steps"] == total
    # The learner alone: of actors nothing is kept.
    agent = make_agent(config.agent, config.network, make_environment(config.env).spec, num_slots=4)
    target = jax.eval_shape(lambda: agent.init(jax.random.key(0, impl="threefry2x32")))
    params = []
    for name in ("played", "learned"):
        with Checkpointer(tmp_path / name / "checkpoints") as saves:
            params.append(saves.restore("learner", target._replace(replay=()))[1].params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), *params)


@pytest.mark.slow
def test_slots_on_several_devices_are_recorded_alike(played, tmp_path):
    config = dataclasses.replace(PLAYED, agent=dataclasses.replace(PLAYED.agent, num_shards=2))
    rounds = []
    for num_devices in (1, 2):
        record = tmp_path / f"record-{num_devices}"
        recorded = dataclasses.replace(
            config, devices=DevicesConfig(num_devices), total_env_steps=100, record=RecordConfig(str(record))
        )
        assert train(recorded, tmp_path / str(num_devices)) == 0
        with RecordReader(record) as reader:
            rounds.append([reader.read(Place(0, n)).arrays for n in range(reader.index.num_rounds)])
    assert len(rounds[0]) == len(rounds[1]) > 4
    for one, two in zip(*rounds, strict=True):
        for name in one:
            np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=1e-5, err_msg=name)
