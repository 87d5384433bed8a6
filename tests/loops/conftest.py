import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture
def actors_find_the_package(monkeypatch):
    """For tests that start actor processes."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'envs'}")
