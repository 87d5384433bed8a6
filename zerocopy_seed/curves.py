"""Learning curves of runs, and of many runs together. Imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_seed.config_file import load_run_config
from zerocopy_seed.config_sweep import Member, has_members, make_members, setting_name
from zerocopy_seed.interquartile import bootstrap_interval, interquartile_mean
from zerocopy_seed.metrics import FILE_NAME, read_metrics

MEMBERS = "members"
"""Where the runs of many lie in a run directory."""

_NUM_POINTS = 100
_SMOOTH_FROM = 40  # with fewer points the eye does it better
_FINAL_PART = 0.1


class Curve(NamedTuple):
    """Episode return over env_steps.

    Attributes:
      label: what it is of.
      env_steps: [n] float64, rising.
      returns: [n], a run's own, or the interquartile mean over several.
      low: [n] lower end of the mean's 95% interval; None for one run.
      high: [n] upper end likewise.
    """

    label: str
    env_steps: np.ndarray
    returns: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def read_points(rows: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """(env_steps, episode returns), [n] each, of the lines in which episodes ended."""
    points = [row for row in rows if type(row.get("episode_return")) in (int, float)]
    env_steps = np.array([row["env_steps"] for row in points], float)
    return env_steps, np.array([row["episode_return"] for row in points], float)


def smoothed(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Means over neighbours, fewer at the ends, and over how many; 1 where there are few points."""
    width = len(values) // 20 | 1 if len(values) >= _SMOOTH_FROM else 1
    window = np.ones(width)
    return np.convolve(values, window, "same") / np.convolve(np.ones_like(values), window, "same"), width


def read_curves(run_dir: str | os.PathLike[str], label: str) -> list[Curve]:
    """The curve of a run directory, or of many runs one for each setting; [] before an episode has ended.

    Args:
      run_dir: what `train` wrote.
      label: of the curve; settings are named after it.

    Raises:
      UserError: it is no run directory, or has no metrics.
    """
    run_dir = Path(run_dir)
    config = load_run_config(run_dir)
    if not has_members(config):
        if not (run_dir / FILE_NAME).is_file():
            raise UserError(str(run_dir), expected="a run with metrics", found=f"no {FILE_NAME} there")
        env_steps, returns = read_points(read_metrics(run_dir))
        return [Curve(label, env_steps, smoothed(returns)[0])] if len(env_steps) else []
    curves = []
    for setting, members in by_setting(make_members(config)).items():
        rows = [read_metrics(run_dir / MEMBERS / member.name) for member in members]
        curve = mean_curve(f"{label}: {setting}" if setting else label, rows)
        curves += [] if curve is None else [curve]
    return curves


def by_setting(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Members grouped by the name of their setting."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(setting_name(member.setting), []).append(member)
    return groups


def mean_curve(label: str, runs: Sequence[Sequence[Mapping[str, Any]]]) -> Curve | None:
    """The interquartile mean over runs and its interval, where all of them have got; None if nowhere.

    Args:
      label: of the curve.
      runs: the lines of each; runs in which no episode has ended are left out.
    """
    points = [points for points in map(read_points, runs) if len(points[0])]
    if not points:
        return None
    begin = max(env_steps[0] for env_steps, _ in points)
    end = max(begin, min(env_steps[-1] for env_steps, _ in points))
    grid = np.linspace(begin, end, _NUM_POINTS if end > begin else 1)
    scores = np.stack([np.interp(grid, *run) for run in points], axis=-1)
    return Curve(label, grid, interquartile_mean(scores), *bootstrap_interval(scores))


def final_return(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean return of the episodes that ended in the last tenth of a run's env_steps; None if none did."""
    last = [row for row in rows if row["env_steps"] > (1.0 - _FINAL_PART) * rows[-1]["env_steps"]]
    _, returns = read_points(last)
    counts = [row["num_episodes"] for row in last if row.get("episode_return") is not None]
    return float(np.average(returns, weights=counts)) if counts else None
