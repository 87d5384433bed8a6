import dataclasses
import json
import pathlib

import pytest
from small_runs import CATCH

from zerocopy_seed import cli
from zerocopy_seed.bench import members
from zerocopy_seed.config_file import dump_config, load_config


def test_the_ratios_are_those_of_seconds_and_of_rates(monkeypatch, tmp_path, capsys):
    launched = []

    def launch(config, scratch):
        launched.append(config)
        assert list(scratch.iterdir()) == []
        number = config.num_seeds
        rows = [{"env_steps": 100, "wall_s": 1.0}, {"env_steps": 1100, "wall_s": 3.0}]
        return (8.0 if number > 1 else 2.0), [rows] * number

    monkeypatch.setattr(members, "launch", launch)
    (tmp_path / "config.toml").write_text(dump_config(CATCH))
    assert cli.main(["bench", "members", "--config", str(tmp_path / "config.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["ratio_to_separate"] == pytest.approx(8 / (32 * 2))
    assert found["separate_env_steps_per_s"] == 500 and found["rate_ratio"] == 32
    assert [config.seed for config in launched[:3]] == [0, 1, 2]
    assert launched[3] == dataclasses.replace(CATCH, num_seeds=32)


def test_its_own_configuration_is_that_of_the_file():
    path = pathlib.Path(__file__).parents[2] / "configs" / "vtrace_cartpole.toml"
    assert load_config(path) == members.DEFAULT_CONFIG


@pytest.mark.slow
def test_it_launches_runs(tmp_path):
    seconds, runs = members.launch(dataclasses.replace(CATCH, num_seeds=3), tmp_path)
    assert len(runs) == 3 and seconds > 0 and members.rate(runs) > 0
    assert all(rows[-1]["env_steps"] >= CATCH.total_env_steps for rows in runs)
