"""What many seeds at once cost, from launch to the end, against as many runs one after the other."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from zerocopy_seed.bench.command import report, with_num_envs
from zerocopy_seed.config import Config, EnvConfig, VTraceConfig
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.config_sweep import has_members, make_members
from zerocopy_seed.curves import MEMBERS
from zerocopy_seed.metrics import read_metrics

# configs/vtrace_cartpole.toml, which an installed package does not have.
DEFAULT_CONFIG = Config(
    env=EnvConfig(name="gymnax:CartPole-v1", num_envs=32),
    total_env_steps=250_000,
    agent=VTraceConfig(
        unroll_length=16,
        num_passes=4,
        learning_rate=3e-3,
        learning_rate_decay_env_steps=250_000,
        max_grad_norm=5.0,
        vtrace_lambda=0.95,
        policy_clip=0.2,
        entropy_cost=0.003,
        baseline_cost=0.02,
    ),
)
_NUM_SEEDS = 32  # of a configuration of one run
_NUM_SEPARATE = 3


def launch(config: Config, scratch: pathlib.Path) -> tuple[float, list[list[dict[str, Any]]]]:
    """Trains in a process of its own with an empty compile cache.

    Args:
      config: one run or many.
      scratch: an empty directory.

    Returns:
      Seconds from launch to exit, and the lines of metrics of every run.
    """
    path, run_dir = scratch / "config.toml", scratch / "run"
    path.write_text(dump_config(config))
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "zerocopy_seed.cli", "train", str(path), "--run-dir", str(run_dir)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"ZEROCOPY_SEED_CACHE_DIR": str(scratch / "cache")},
    )
    seconds = time.perf_counter() - began
    members = sorted((run_dir / MEMBERS).glob("*")) or [run_dir]
    return seconds, [read_metrics(directory) for directory in members]


def rate(runs: Sequence[Sequence[dict[str, Any]]]) -> float:
    """Environment steps a second between the first line and the last, of all runs of a process together."""
    env_steps = sum(rows[-1]["env_steps"] - rows[0]["env_steps"] for rows in runs)
    first = sum(rows[0]["wall_s"] for rows in runs) / len(runs)
    return env_steps / (max(rows[-1]["wall_s"] for rows in runs) - first)


def measure(config: Config) -> dict[str, Any]:
    """The members of `config` at once, and a few of them one after the other, counted as if all were.

    `ratio_to_separate` is the time at once over the time apart, from launch; `rate_ratio` is the
    environment steps a second while training, at once over alone.
    """
    members = make_members(config)
    apart_s, apart_rates = [], []
    for member in members[:_NUM_SEPARATE]:
        with tempfile.TemporaryDirectory() as scratch:
            seconds, runs = launch(member.config, pathlib.Path(scratch))
        apart_s.append(seconds)
        apart_rates.append(rate(runs))
    with tempfile.TemporaryDirectory() as scratch:
        at_once_s, runs = launch(config, pathlib.Path(scratch))
    separate_s = sum(apart_s) / len(apart_s)
    separate_rate = sum(apart_rates) / len(apart_rates)
    return {
        "env": config.env.name,
        "num_members": len(members),
        "at_once_s": at_once_s,
        "separate_s": separate_s,
        "num_separate": len(apart_s),
        "ratio_to_separate": at_once_s / (len(members) * separate_s),
        "env_steps_per_s": rate(runs),
        "separate_env_steps_per_s": separate_rate,
        "rate_ratio": rate(runs) / separate_rate,
    }


def run(
    configs: Sequence[Config] = (DEFAULT_CONFIG,), *, num_envs: Sequence[int] = (), as_json: bool = False
) -> None:
    """Measures and prints the figures; JSON comes as one object on the last line.

    Args:
      configs: of many runs, or of one, whose next 32 seeds are taken.
      num_envs: instead of a configuration's own number of environments, each of these.
      as_json: print only the JSON object.
    """
    many = [
        config if has_members(config) else dataclasses.replace(config, num_seeds=_NUM_SEEDS)
        for config in with_num_envs(configs, num_envs)
    ]
    report("members", many, measure, _describe, as_json=as_json)


def _describe(result: dict[str, Any]) -> str:
    return (
        f"{result['env']}: {result['num_members']} at once {result['at_once_s']:.1f} s, one alone "
        f"{result['separate_s']:.1f} s: ratio to separate runs {result['ratio_to_separate']:.3f}; "
        f"{result['env_steps_per_s']:,.0f} env_steps/s, alone "
        f"{result['separate_env_steps_per_s']:,.0f}: {result['rate_ratio']:.2f} times"
    )
