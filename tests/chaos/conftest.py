import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def processes_find_the_package(monkeypatch):
    paths = (ROOT, ROOT / "envs", ROOT / "tests", ROOT / "tests" / "remote")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 20 MB."""
    directory = tmp_path / "small"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(directory)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("to mount a tmpfs of 20 MB takes root and the right to mount")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)
