import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_seed.metrics import TAGS, MetricsWriter, read_metrics
from zerocopy_seed.plotting import plot_learning_curve
from zerocopy_seed.progress import Progress
from zerocopy_seed.tensorboard import EventsFile

ROOT = Path(__file__).resolve().parents[1]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def write_run(run_dir, env_steps, *, resume=None, tensorboard=False, seconds=1.0):
    clock = Clock()
    with MetricsWriter(run_dir, tensorboard=tensorboard, resume_env_steps=resume, clock=clock) as writer:
        for count in env_steps:
            clock.now += seconds
            writer.write({"env_steps": count, "episode_return": count / 2})


def events(run_dir):
    """(file, step, tag, value) of every scalar, and the purge steps, in the order of the files' names."""
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]  # generated

    scalars, purges = [], []
    for path in sorted(run_dir.glob("events.*"), key=lambda path: int(path.name.rsplit(".", 1)[1])):
        content = path.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")  # length, its checksum, the event, its checksum
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.HasField("session_log"):
                purges.append(event.step)
            scalars += [(path.name, event.step, v.tag, v.simple_value) for v in event.summary.value]
    return scalars, purges


def test_a_line_is_one_flat_object_of_plain_numbers(tmp_path):
    row = {
        "env_steps": np.int64(2**40),
        "num_updates": jnp.int32(3),
        "episode_return": np.float32(0.0),
        "loss": jnp.float32(0.5),
        "half": jnp.bfloat16(0.25),
        "one": np.ones((1,)),
        "nan": float("nan"),
        "inf": jnp.float32(-math.inf),
        "note": "x",
        "flag": np.bool_(True),
        "nothing": None,
    }
    clock = Clock()
    with MetricsWriter(tmp_path, tensorboard=False, resume_env_steps=None, clock=clock) as writer:
        clock.now += 2.5
        writer.write(row)
        text = (tmp_path / "metrics.jsonl").read_text()  # flushed before it is closed
    expected = {"env_steps": 2**40, "wall_s": 2.5, "num_updates": 3, "episode_return": 0.0, "loss": 0.5}
    expected |= {
        "half": 0.25,
        "one": 1.0,
        "nan": None,
        "inf": None,
        "note": "x",
        "flag": True,
        "nothing": None,
    }
    assert text.endswith("\n") and json.loads(text, parse_constant=pytest.fail) == expected
    assert read_metrics(tmp_path) == [expected]


@pytest.mark.parametrize("value", [np.ones(3), jnp.ones((2, 2)), {"a": 1}, [1.0]])
def test_what_is_no_scalar_is_named(tmp_path, value):
    with (
        MetricsWriter(tmp_path, tensorboard=False, resume_env_steps=None) as writer,
        pytest.raises(TypeError, match="metric entropy"),
    ):
        writer.write({"env_steps": 1, "entropy": value})
    assert read_metrics(tmp_path) == []


def test_a_resume_cuts_what_is_past_the_checkpoint_and_a_torn_line(tmp_path):
    write_run(tmp_path, [10, 20, 30, 40])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 5')
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [10, 20, 30, 40]
    write_run(tmp_path, [30, 50], resume=20, seconds=0.5)
    rows = read_metrics(tmp_path)
    assert [(row["env_steps"], row["wall_s"]) for row in rows] == [(10, 1), (20, 2), (30, 2.5), (50, 3)]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_resume_from_step_0_and_a_new_run(tmp_path):
    write_run(tmp_path, [10])
    write_run(tmp_path, [20], resume=0)
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [20]
    write_run(tmp_path, [30])
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [30]


def test_no_metrics_is_no_rows(tmp_path):
    assert read_metrics(tmp_path / "typo") == []
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_has_the_known_tags_at_env_steps(tmp_path):
    row = {name: float(i) for i, name in enumerate(TAGS)}
    with MetricsWriter(tmp_path, tensorboard=True, resume_env_steps=None) as writer:
        writer.write(row | {"env_steps": 640, "own": 7, "nan": math.nan, "note": "x"})
    scalars, purges = events(tmp_path)
    found = {tag: value for _, _, tag, value in scalars}
    assert {step for _, step, _, _ in scalars} == {640} and purges == []
    assert found.pop("train/own") == 7 and found.pop("train/wall_s") >= 0
    assert found == {tag: float(i) for i, tag in enumerate(TAGS.values())}
    known = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "charts/learning_rate"}
    assert known | {"losses/policy_loss", "losses/value_loss", "losses/entropy"} <= found.keys()


def test_an_event_that_is_lost_is_no_line_that_is_lost(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    said = []
    with MetricsWriter(tmp_path, tensorboard=True, resume_env_steps=None, warn=said.append) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(EventsFile, "add", fail)
            writer.write({"env_steps": 1})
            writer.write({"env_steps": 2})
        writer.write({"env_steps": 3})
        assert writer.num_lost_lines == 0 and len(read_metrics(tmp_path)) == 3
    assert len(said) == 2 and "a TensorBoard event could not be written: No space" in said[0]
    assert "2 are lost" in said[1]


def test_a_resume_hides_the_later_events_and_keeps_the_earlier(tmp_path):
    write_run(tmp_path, [10, 20, 30], tensorboard=True)
    write_run(tmp_path, [30], resume=20, tensorboard=True)  # within the same second
    scalars, purges = events(tmp_path)
    assert len({name for name, *_ in scalars}) == 2
    assert purges == [21]
    returns = [(step, value) for _, step, tag, value in scalars if tag == "charts/episodic_return"]
    assert returns == [(10, 5.0), (20, 10.0), (30, 15.0), (30, 15.0)]


@pytest.mark.parametrize("num_points", [0, 1, 2, 100])
def test_learning_curve(tmp_path, num_points):
    rows = [{"env_steps": 100 * i, "episode_return": 3.0 if i < 2 else float(i)} for i in range(num_points)]
    plot_learning_curve([{"env_steps": 0}, *rows], tmp_path / "learning_curve.png")
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_learning_curve_of_a_run_directory(tmp_path):
    write_run(tmp_path, [10, 20])
    plot_learning_curve(tmp_path, tmp_path / "a.png")
    rows = read_metrics(tmp_path)
    plot_learning_curve(rows, tmp_path / "b.png", title=tmp_path.name)
    plot_learning_curve(rows[:1], tmp_path / "c.png", title=tmp_path.name)
    a, b, c = ((tmp_path / f"{name}.png").read_bytes() for name in "abc")
    assert a == b != c


def test_progress_off_a_terminal(tmp_path):
    clock, stream = Clock(), io.StringIO()
    with Progress(1_000, stream, clock=clock) as progress:
        clock.now += 7
        progress.compiled(2.13)
        for env_steps in range(100, 1_100, 100):
            clock.now += 1
            progress.update({"env_steps": env_steps, "env_steps_per_s": 150.4})
    assert stream.getvalue().splitlines() == [
        "compiled in 2.1 s",
        "env_steps 100/1,000 (10%)  150/s  return -  left 0:09",
        "env_steps 600/1,000 (60%)  150/s  return -  left 0:04",
        "env_steps 1,000/1,000 (100%)  150/s  return -  left 0:00",
    ]


def test_progress_shows_the_last_return_and_0_is_a_return():
    clock, stream = Clock(), io.StringIO()
    with Progress(100_000, stream, 50_000, clock=clock) as progress:
        returns = (None, np.float32(0), None, math.nan, -1.5)
        for i, episode_return in enumerate(returns):
            clock.now += 10
            row = {"env_steps": 50_000 + 10 * (i + 1)}
            progress.update(row if episode_return is None else row | {"episode_return": episode_return})
    shown = [line.split("return ")[1].split()[0] for line in stream.getvalue().splitlines()]
    assert shown == ["-", "0.00", "0.00", "0.00", "-1.50"]
    assert stream.getvalue().splitlines()[0] == "env_steps 50,010/100,000 (50%)  1/s  return -  left 13:53:10"


def test_progress_of_many_runs_tells_of_the_worst_and_the_best():
    clock, stream = Clock(), io.StringIO()
    with Progress(400, stream, clock=clock) as progress:
        for returns in ([], [3.0], [3.0, math.nan, -1.0, 7.0]):
            clock.now += 10
            progress.update({"env_steps": 200, "episode_returns": returns})
    shown = [line.split("return ")[1].split("  ")[0] for line in stream.getvalue().splitlines()]
    assert shown == ["-", "3.00", "3.00 (worst -1.00, best 7.00)"]


def test_progress_on_a_terminal_is_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    clock, stream = Clock(), Terminal()
    with Progress(1_000, stream, clock=clock) as progress:
        for env_steps in (500, 1_000):
            clock.now += 0.1
            progress.update({"env_steps": env_steps, "episode_return": 1.0})
    first, second, third = stream.getvalue().split("\r")
    assert (first, third[-1]) == ("", "\n")
    assert second == "env_steps 500/1,000 (50%)  5,0"[:29] + "\x1b[K"
    assert third.startswith("env_steps 1,000/1,000 (100%)")


def test_progress_without_rows_leaves_no_line():
    stream = Terminal()
    Progress(10, stream).close()
    assert stream.getvalue() == ""


IMPORTS_NO_JAX = """
import sys
from zerocopy_seed import manifest, metrics, plotting, progress
with metrics.MetricsWriter(sys.argv[1], tensorboard=True, resume_env_steps=None) as writer:
    writer.write({"env_steps": 1})
heavy = {"jax", "matplotlib", "orbax"} & set(sys.modules)
assert not heavy, heavy
"""


def test_metrics_and_progress_import_no_jax(tmp_path):
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORTS_NO_JAX, str(tmp_path)],
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "envs")])},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
