"""The Dockerfile's steps, as far as they go without Docker: in a virtual environment instead of an image."""

import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Step(NamedTuple):
    instruction: str
    rest: str


def targets():
    """The steps of every stage, those of the stage that it begins from included."""
    stages: dict[str, list[Step]] = {}
    steps: list[Step] = []
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in lines:
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            origin, _, name = rest.partition(" AS ")
            steps = list(stages.get(origin, [Step("FROM", origin)]))
            stages[name] = steps
        else:
            steps.append(Step(instruction, rest))
    return stages


def last(steps, instruction):
    return [step.rest for step in steps if step.instruction == instruction][-1]


@pytest.mark.parametrize("target", ["actor", "learner"])
def test_an_image_has_what_it_needs_and_is_not_run_by_root(target):
    steps = targets()[target]
    copied = [source for step in steps if step.instruction == "COPY" for source in step.rest.split()[:-1]]
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert {"zerocopy_seed", "envs", "pyproject.toml"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists() and source in kept
    assert steps[0].rest.startswith("python:3.")
    user = last(steps, "USER")
    assert user != "root" and any(f"useradd --create-home --uid 1000 {user}" in step.rest for step in steps)
    assert last(steps, "STOPSIGNAL") == "SIGTERM"
    assert json.loads(last(steps, "ENTRYPOINT"))[0] == "zerocopy-seed"  # no shell, which would keep signals


def installed(steps):
    """The words of the one `pip install`."""
    (words,) = [
        shlex.split(step.rest)
        for step in steps
        if step.instruction == "RUN" and step.rest.startswith("pip install")
    ]
    return words[1:]


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """What `docker build` sends: a copy without what is ignored."""
    directory = tmp_path_factory.mktemp("context")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            source = ROOT / line[1:]
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, directory / source.name)
    return directory


@pytest.fixture(scope="module")
def actor_venv(context, tmp_path_factory):
    venv = tmp_path_factory.mktemp("image") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    words = installed(targets()["actor"])
    subprocess.run([venv / "bin" / "python", "-m", "pip", "-q", *words], cwd=context, check=True)
    # An image's files can be read by its user, whatever made them.
    for parent in [venv, *venv.parents[:3]]:
        parent.chmod(0o755)
    return venv


@pytest.mark.slow
def test_the_actors_image_has_no_jax_and_plays_atari(actor_venv):
    python = actor_venv / "bin" / "python"
    found = subprocess.run([python, "-c", "import jax"], capture_output=True, text=True, cwd="/")
    assert "No module named 'jax'" in found.stderr
    play = (
        "from zerocopy_envs import registry; import numpy as np; e = registry.make('ale:Pong', num_envs=1);"
        "print(e.reset(np.zeros(1, np.uint64)).observation.shape)"
    )
    assert "(1, 84, 84" in subprocess.check_output([python, "-c", play], text=True, cwd="/")


@pytest.mark.slow
def test_the_actors_process_is_pid_1_of_another_user_and_ends_at_sigterm(actor_venv):
    program, *words = json.loads(last(targets()["actor"], "ENTRYPOINT"))
    command = [str(actor_venv / "bin" / program), *words, "127.0.0.1:9", "--reconnect-s", "inf"]
    if os.getuid() == 0:
        as_user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
        command = ["unshare", "--pid", "--fork", "--kill-child", *as_user, *command]
    with subprocess.Popen(
        command,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"HOME": "/tmp"},
    ) as process:
        assert process.stdout is not None
        assert "127.0.0.1:9" in process.stdout.readline()  # it listens for signals by then
        pid = process.pid
        if os.getuid() == 0:
            pid = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
            assert f"NSpid:\t{pid}\t1\n" in pathlib.Path(f"/proc/{pid}/status").read_text()
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        assert process.wait(timeout=10) == 0, process.stdout.read()
        assert time.monotonic() - began < 5


@pytest.mark.slow
def test_what_the_learners_image_installs_can_be_resolved(context):
    words = installed(targets()["learner"])
    report = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--dry-run", "--ignore-installed", "--quiet", "--report", "-"],
        cwd=context,
        capture_output=True,
        text=True,
    )
    assert report.returncode == 0, report.stderr
    names = {package["metadata"]["name"] for package in json.loads(report.stdout)["install"]}
    assert {"jax", "jax-cuda12-plugin", "nvidia-cudnn-cu12", "brax", "ale-py", "zerocopy_seed"} <= names
