import functools
import json
import pathlib
import time

import pytest
from small_runs import CATCH

from zerocopy_seed import cli
from zerocopy_seed.bench import mesh
from zerocopy_seed.config_file import dump_config, load_config

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    monkeypatch.setattr(mesh, "pin_to_one_core", lambda: None)  # would pin the other tests too
    monkeypatch.setattr(mesh, "measure", functools.partial(mesh.measure, rounds=4, call_s=0.02))


def test_the_ratio_is_that_of_the_mesh_over_the_unsharded(monkeypatch, tmp_path, capsys):
    calls = {"mesh": [], "unsharded": []}

    def make_whole(config, devices):
        assert config == CATCH
        name = "unsharded" if devices is None else "mesh"

        def call(num_updates):
            calls[name].append(num_updates)
            time.sleep(num_updates * (0.003 if devices is None else 0.006))

        return call

    monkeypatch.setattr(mesh, "make_whole", make_whole)
    (tmp_path / "config.toml").write_text(dump_config(CATCH))
    assert cli.main(["bench", "mesh", "--config", str(tmp_path / "config.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["bench"], found["env"], found["agent"]) == ("mesh", "zerocopy:Catch", "vtrace")
    assert 1.5 < found["ratio_to_unsharded"] < 2.5
    assert found["mesh_s"] >= 0.006 and found["unsharded_s"] >= 0.003
    assert calls["mesh"] == calls["unsharded"] and len(calls["mesh"]) == 2 + 4


def test_its_own_configurations_are_those_of_the_files():
    files = [CONFIGS / f"{name}_cartpole.toml" for name in ("vtrace", "r2d2")]
    assert [load_config(path) for path in files] == list(mesh.DEFAULT_CONFIGS)


@pytest.mark.slow
def test_both_programs_run():
    assert 0.2 < mesh.measure(CATCH)["ratio_to_unsharded"] < 5
