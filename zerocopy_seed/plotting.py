"""Pictures of runs. Imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerocopy_seed.curves import Curve, read_points, smoothed
from zerocopy_seed.metrics import read_metrics

_LINE, _INK, _GRID = "#2563a8", "#333333", "#e3e3e3"
_COLORS = (_LINE, "#c8553d", "#3d8b5f", "#8a5fa8", "#b8860b", "#1f9aa5", "#a8325e", "#6b6b6b")
_EVALUATED = "evaluation_return"
_STYLES = ("-", "--", ":", "-.")


def plot_learning_curve(
    run: str | os.PathLike[str] | Sequence[Mapping[str, Any]], path: str | os.PathLike[str], title: str = ""
) -> None:
    """Draws the episode return over env_steps as a PNG.

    Args:
      run: a run directory, or the rows of its metrics; rows in which no episode ended are passed over.
      path: the picture.
      title: by default the run directory's name.
    """
    if isinstance(run, str | os.PathLike):
        title = title or Path(run).resolve().name
        rows: Sequence[Mapping[str, Any]] = read_metrics(run)
    else:
        rows = run
    env_steps, returns = read_points(rows)
    figure, axes = _make_axes(title, is_empty=not len(env_steps))
    evaluated = [(row["evaluation_env_steps"], row["evaluation_return"]) for row in rows if _EVALUATED in row]
    if evaluated:
        axes.plot(
            *zip(*evaluated, strict=True),
            color=_COLORS[1],
            linewidth=1.8,
            marker="o",
            markersize=3.5,
            label="evaluation policy",
        )
    if len(env_steps):
        smooth, width = smoothed(returns)
        if width == 1:
            axes.plot(
                env_steps,
                returns,
                color=_LINE,
                linewidth=1.8,
                marker="o",
                markersize=3.5,
                clip_on=False,
                label="while training",
            )
        else:
            axes.plot(env_steps, returns, color=_LINE, alpha=0.3, linewidth=1.0, label="each log line")
            axes.plot(env_steps, smooth, color=_LINE, linewidth=2.0, label=f"mean of {width} lines")
        if evaluated or width > 1:
            axes.legend(frameon=False, labelcolor=_INK, loc="best")
        axes.set_xlim(0, 1.02 * max(env_steps[-1], 1))
        if returns.min() == returns.max() and not evaluated:
            margin = max(abs(returns[0]) * 0.1, 1.0)
            axes.set_ylim(returns[0] - margin, returns[0] + margin)
        axes.set_title(f"last point {returns[-1]:.2f}", color=_INK, loc="right", fontsize="medium")
    figure.savefig(path, format="png")


def plot_curves(curves: Sequence[Curve], path: str | os.PathLike[str], title: str = "") -> None:
    """Draws several curves together; the interval of a mean is a band around it.

    Args:
      curves: one line each, named in the legend.
      path: the picture, in the format of its ending.
      title: above it.
    """
    figure, axes = _make_axes(title, is_empty=not curves)
    for place, curve in enumerate(curves):
        color = _COLORS[place % len(_COLORS)]
        style = _STYLES[place // len(_COLORS) % len(_STYLES)]
        axes.plot(
            curve.env_steps,
            curve.returns,
            color=color,
            linestyle=style,
            linewidth=1.8,
            marker="o" if len(curve.env_steps) == 1 else None,
            label=curve.label.replace("$", r"\$"),
        )
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.env_steps, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
    if curves:
        axes.set_xlim(0, 1.02 * max(max(curve.env_steps[-1] for curve in curves), 1))
        note = "interquartile mean, 95% band" if any(curve.low is not None for curve in curves) else None
        axes.legend(frameon=False, labelcolor=_INK, loc="best", fontsize="small", title=note)
    figure.savefig(path)


def _make_axes(title: str, *, is_empty: bool) -> tuple[Any, Any]:
    # pyplot would take half a second more, and look for a display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(7.2, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if is_empty:
        axes.text(0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color=_INK)
        axes.set(xticks=[], yticks=[])
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("env_steps (agent steps)", color=_INK)
    axes.set_ylabel("episode return (undiscounted)", color=_INK)
    axes.set_title((title or "learning curve").replace("$", r"\$"), color=_INK, loc="left", fontweight="bold")
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=_INK, length=3)
    return figure, axes
