"""The programs to copy from run, and stay short."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def run_script(name: str, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'envs'}"}
    command = [sys.executable, str(ROOT / "scripts" / name), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


@pytest.mark.slow
def test_train_and_then_play(tmp_path):
    run_dir = str(tmp_path / "run")
    assert "128 episodes: return " in run_script("train.py", run_dir, "1280")
    lines = run_script("evaluate.py", run_dir, "20").splitlines()
    # Nine steps an episode, the tenth resets: two episodes of each of four environments.
    assert [line.partition(": ")[0] for line in lines] == [f"environment {slot}" for slot in range(4)] * 2
    assert {line.partition(": ")[2] for line in lines} <= {"return 1", "return -1"}


def test_they_are_short():
    for name in ("train.py", "evaluate.py", "benchmark.py"):
        assert len((ROOT / "scripts" / name).read_text().splitlines()) < 40, name
