"""The picture of a run. Imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zerocopy_seed.metrics import read_metrics

_LINE, _INK, _GRID = "#2563a8", "#333333", "#e3e3e3"
_SMOOTH_FROM = 40  # with fewer points the eye does it better


def plot_learning_curve(
    run: str | os.PathLike[str] | Sequence[Mapping[str, Any]], path: str | os.PathLike[str], title: str = ""
) -> None:
    """Draws the episode return over env_steps as a PNG.

    Args:
      run: a run directory, or the rows of its metrics; rows in which no episode ended are passed over.
      path: the picture.
      title: by default the run directory's name.
    """
    # pyplot would take half a second more, and look for a display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    if isinstance(run, str | os.PathLike):
        title = title or Path(run).resolve().name
        rows: Sequence[Mapping[str, Any]] = read_metrics(run)
    else:
        rows = run
    points = [row for row in rows if row.get("episode_return") is not None]
    env_steps = np.array([row["env_steps"] for row in points], float)
    returns = np.array([row["episode_return"] for row in points], float)

    figure = Figure(figsize=(7.2, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if not points:
        axes.text(0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color=_INK)
        axes.set(xticks=[], yticks=[])
    elif len(points) < _SMOOTH_FROM:
        axes.plot(env_steps, returns, color=_LINE, linewidth=1.8, marker="o", markersize=3.5, clip_on=False)
    else:
        axes.plot(env_steps, returns, color=_LINE, alpha=0.3, linewidth=1.0, label="each log line")
        width = len(points) // 20 | 1
        smooth = _centred_mean(returns, width)
        axes.plot(env_steps, smooth, color=_LINE, linewidth=2.0, label=f"mean of {width} lines")
        axes.legend(frameon=False, labelcolor=_INK, loc="best")
    if points:
        axes.set_xlim(0, 1.02 * max(env_steps[-1], 1))
    if points and returns.min() == returns.max():
        margin = max(abs(returns[0]) * 0.1, 1.0)
        axes.set_ylim(returns[0] - margin, returns[0] + margin)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("env_steps (agent steps)", color=_INK)
    axes.set_ylabel("episode return (undiscounted)", color=_INK)
    axes.set_title((title or "learning curve").replace("$", r"\$"), color=_INK, loc="left", fontweight="bold")
    if points:
        axes.set_title(f"last point {returns[-1]:.2f}", color=_INK, loc="right", fontsize="medium")
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=_INK, length=3)
    figure.savefig(path, format="png")


def _centred_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean over `width` (odd) neighbours, fewer at the ends."""
    window = np.ones(width)
    return np.convolve(values, window, "same") / np.convolve(np.ones_like(values), window, "same")
