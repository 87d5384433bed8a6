"""A disk that is full stops nothing: what cannot be written is said once and counted."""

import dataclasses
import errno
import os
import signal

import jax
import jax.numpy as jnp
import pytest
from processes import Process, finished_steps, wait_for
from small_runs import CATCH

from zerocopy_envs.errors import UserError
from zerocopy_seed.checkpoint import Checkpointer, CheckpointError
from zerocopy_seed.config import CheckpointConfig, MetricsConfig
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.files import replace_text
from zerocopy_seed.metrics import MetricsWriter, read_metrics


def fill(directory):
    """Takes all room that is left; gives what to delete."""
    filler = directory / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (2**16, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return filler


def test_what_is_there_stays_and_what_comes_later_is_written(small_disk, capfd):
    said = []
    # Several arrays: each fails in a thread of its own, and only the first is to be heard of.
    items = {"acting": {name: jnp.arange(20_000, dtype=jnp.float32) for name in "abcdefgh"}}
    target = {name: jax.ShapeDtypeStruct((20_000,), jnp.float32) for name in "abcdefgh"}
    config = small_disk / "config.toml"
    replace_text(config, "seed = 1")
    with (
        Checkpointer(small_disk / "checkpoints", warn=pytest.fail) as saves,
        MetricsWriter(small_disk, tensorboard=True, resume_env_steps=None, warn=said.append) as metrics,
    ):
        saves.save(1, items)
        metrics.write({"env_steps": 1})
        saves.wait()
        filler = fill(small_disk)
        for step in range(2, 20):  # more than any queue holds
            metrics.write({"env_steps": step, "note": "x" * 5000})
        with pytest.raises(CheckpointError, match="checkpoint 2 was not saved .*No space left"):
            saves.save(2, items)
            saves.wait()
        with pytest.raises(OSError, match="No space left"):
            replace_text(config, "seed = 2" + "\n" * 5000)
        assert config.read_text() == "seed = 1"
        assert sorted(os.listdir(small_disk / "checkpoints")) == ["1"]
        assert saves.restore("acting", target)[0] == 1
        # The small events have room in what their file has of the disk.
        assert len(said) == 1 and "No space left" in said[0] and metrics.num_lost_lines == 18
        filler.unlink()
        saves.save(3, items)
        metrics.write({"env_steps": 20})
        assert saves.restore("acting", target)[0] == 3
        assert saves.steps() == [1, 3]
    assert len(said) == 2 and "18 are lost" in said[1]
    assert [row["env_steps"] for row in read_metrics(small_disk)] == [1, 20]
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_is_not_begun_without_room_for_its_metrics(small_disk):
    (small_disk / "metrics.jsonl").write_text('{"env_steps": 1}\n' * 500)
    filler = fill(small_disk)
    with pytest.raises(UserError, match="No space left"):
        MetricsWriter(small_disk, tensorboard=False, resume_env_steps=1)
    assert len(read_metrics(small_disk)) == 500
    filler.unlink()


def start(tmp_path, run_dir):
    config = dataclasses.replace(
        CATCH,
        total_env_steps=10**12,
        checkpoint=CheckpointConfig(every_s=0.5),
        metrics=MetricsConfig(every_env_steps=2_000),
    )
    (tmp_path / "config.toml").write_text(dump_config(config))
    return Process("train", tmp_path / "config.toml", "--run-dir", run_dir, log=tmp_path / "log")


def reached(run):
    """env_steps, of the newest line that a run could write."""
    return read_metrics(run)[-1]["env_steps"]


@pytest.mark.slow
@pytest.mark.parametrize("is_full_at_the_end", [False, True])
def test_training_goes_on(tmp_path, small_disk, is_full_at_the_end):
    run_dir = small_disk / "run"
    with start(tmp_path, run_dir) as learner:
        wait_for(lambda: finished_steps(run_dir) and read_metrics(run_dir), process=learner)
        filler = fill(small_disk)
        learner.wait_to_say("was not saved")
        earlier = finished_steps(run_dir)
        assert earlier
        with pytest.raises(AssertionError):  # it goes on, and says nothing more of what fails
            wait_for(lambda: learner.said.count("was not saved") > 1, 5, learner)
        assert learner.poll() is None and finished_steps(run_dir) == earlier
        if not is_full_at_the_end:
            filler.unlink()
            wait_for(lambda: finished_steps(run_dir)[-1] > earlier[-1], process=learner)
            learner.wait_to_say("checkpoints are saved again")
            wait_for(lambda: read_metrics(run_dir)[-1]["num_failed_saves"] > 1, process=learner)
            assert read_metrics(run_dir)[-1]["num_lost_lines"] > 1
        learner.send_signal(signal.SIGTERM)
        code = learner.wait(300)
    assert code == is_full_at_the_end, learner.said
    assert "Traceback" not in learner.said
    if is_full_at_the_end:
        assert "the last checkpoint could not be saved" in learner.said
        assert (
            learner.said.count("No space left") > 1 and learner.said.count("was not saved") == 2
        )  # why, again
        assert finished_steps(run_dir) == earlier
        filler.unlink()
        total = str(earlier[-1] + 500)
        with Process(
            "train", "--run-dir", run_dir, "--resume", "--total-env-steps", total, log=tmp_path / "again"
        ) as again:
            assert again.wait(600) == 0, again.said
        assert f"at {earlier[-1]:,} env_steps" in again.said
