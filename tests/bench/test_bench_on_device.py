import dataclasses
import functools
import json

import pytest
from small_runs import CATCH

from zerocopy_seed.bench import on_device
from zerocopy_seed.config import R2D2Config

R2D2 = dataclasses.replace(
    CATCH,
    agent=R2D2Config(
        unroll_length=5, sequence_length=5, period=5, replay_capacity=64, min_replay=8, batch_size=4
    ),
)


def figures(monkeypatch, capsys, config):
    monkeypatch.setattr(on_device, "pin_to_one_core", lambda: None)  # would pin the other tests too
    monkeypatch.setattr(on_device, "measure", functools.partial(on_device.measure, rounds=2, part_s=1e-3))
    on_device.run([config], as_json=True)
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_figures_add_up(monkeypatch, capsys):
    def stand_ins(config):
        """Parts that do next to nothing."""
        names = ("environment", "act", "learn", "whole")
        return dict.fromkeys(names, lambda carry, repeats: carry + repeats), dict.fromkeys(names, (0,))

    monkeypatch.setattr(on_device, "make_parts", stand_ins)
    found = figures(monkeypatch, capsys, CATCH)
    assert (found["bench"], found["env"], found["num_envs"], found["unroll_length"]) == (
        "on_device", "zerocopy:Catch", 4, 5,
    )  # fmt: skip
    parts = [found[f"{name}_s"] for name in ("environment", "act", "learn")]
    assert all(0 < seconds < 1 for seconds in (*parts, found["whole_s"]))
    # The whole's rate over the rate that the parts' times add up to.
    assert abs(found["ratio_to_limit"] / (sum(parts) / found["whole_s"]) - 1) < 1e-6
    assert abs(found["env_steps_per_s"] * found["whole_s"] - 4 * 5) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("config", [CATCH, R2D2], ids=["vtrace", "r2d2"])
def test_the_parts_of_both_agents_run(monkeypatch, capsys, config):
    assert figures(monkeypatch, capsys, config)["ratio_to_limit"] > 0


def test_several_configurations_are_a_list(monkeypatch, capsys):
    monkeypatch.setattr(on_device, "pin_to_one_core", lambda: None)
    monkeypatch.setattr(
        on_device,
        "measure",
        lambda config: {"num_envs": config.env.num_envs},
    )
    more = dataclasses.replace(CATCH, env=dataclasses.replace(CATCH.env, num_envs=8))
    on_device.run([CATCH, more], as_json=True)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [result["num_envs"] for result in found["results"]] == [4, 8]
