"""What many runs came to: `summary.json` and `summary.png`. Imports no JAX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from zerocopy_seed.config_file import load_run_config
from zerocopy_seed.config_sweep import make_members
from zerocopy_seed.curves import MEMBERS, by_setting, final_return, mean_curve
from zerocopy_seed.files import replace_text
from zerocopy_seed.interquartile import bootstrap_interval, interquartile_mean
from zerocopy_seed.metrics import read_metrics
from zerocopy_seed.plotting import plot_curves


def write_summary(run_dir: str | Path, path: str | Path) -> None:
    """Writes the summary of a directory of many runs as JSON to `path`, and beside it as a picture, `.png`.

    Args:
      run_dir: what `train` wrote.
      path: ends in `.json`.
    """
    path = Path(path)
    summary = summarize(run_dir)
    replace_text(path, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    curves = []
    for setting in summary["settings"]:
        rows = [read_metrics(Path(run_dir) / MEMBERS / name) for name in setting["members"]]
        iqm, num_seeds = setting["return_iqm"], len(setting["members"])
        label = setting["name"] or f"{num_seeds} seeds"
        curve = mean_curve(label if iqm is None else f"{label}: {iqm:.2f}", rows)
        curves += [] if curve is None else [curve]
    plot_curves(curves, path.with_suffix(".png"), Path(run_dir).resolve().name)


def summarize(run_dir: str | Path) -> dict[str, Any]:
    """For every setting the interquartile mean over seeds of the final return, and its interval.

    The final return is the mean over the episodes that ended in the last tenth of a run's env_steps.

    Raises:
      UserError: it is no run directory.
    """
    config = load_run_config(run_dir)
    settings = []
    for name, members in by_setting(make_members(config)).items():
        rows = [read_metrics(Path(run_dir) / MEMBERS / member.name) for member in members]
        returns = [final_return(run) for run in rows]
        known = np.array([value for value in returns if value is not None])
        iqm = float(interquartile_mean(known)) if len(known) else None
        low, high = map(float, bootstrap_interval(known)) if len(known) else (None, None)
        settings.append(
            {
                "name": name,
                "values": {path: _finite(value) for path, value in members[0].setting.items()},
                "members": [member.name for member in members],
                "env_steps": [run[-1]["env_steps"] if run else 0 for run in rows],
                "returns": returns,
                "return_iqm": iqm,
                "return_iqm_low": low,
                "return_iqm_high": high,
            }
        )
    return {
        "env": config.env.name,
        "agent": config.agent.name,
        "num_seeds": config.num_seeds,
        "total_env_steps": config.total_env_steps,
        "score": "mean return of the episodes that ended in the last tenth of env_steps",
        "interval": "95%, percentile bootstrap over seeds",
        "settings": settings,
    }


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return value if np.isfinite(value) else str(value)
