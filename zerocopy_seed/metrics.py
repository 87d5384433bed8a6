"""What a run logs: `metrics.jsonl`, and TensorBoard events beside it. Imports no JAX."""

from __future__ import annotations

import errno
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zerocopy_seed.files import replace_text

FILE_NAME = "metrics.jsonl"

# The tags that CleanRL and its descendants have made known; what is not here goes under `train/`.
TAGS = {
    "episode_return": "charts/episodic_return",
    "episode_length": "charts/episodic_length",
    "env_steps_per_s": "charts/SPS",
    "learning_rate": "charts/learning_rate",
    "num_updates": "charts/num_updates",
    "policy_loss": "losses/policy_loss",
    "value_loss": "losses/value_loss",
    "entropy": "losses/entropy",
    "entropy_cost": "losses/entropy_cost",
    "grad_norm": "losses/grad_norm",
    "importance_ratio": "losses/importance_ratio",
}


class MetricsWriter:
    """Appends lines to a run's metrics; a context manager.

    Args:
      run_dir: made if it is not there.
      tensorboard: write TensorBoard events into `run_dir` too.
      resume_env_steps: where the checkpoint stands that the run goes on from: later lines are cut, and later
        events hidden. None begins anew, over whatever is there.
      warn: called with one line, once, when a line cannot be written (a full disk); it is lost.
      clock: seconds.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        tensorboard: bool,
        resume_env_steps: int | None,
        warn: Callable[[str], None] = warnings.warn,
        clock: Callable[[], float] = time.monotonic,
    ):
        run_dir = Path(run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        kept = [] if resume_env_steps is None else read_metrics(run_dir)
        kept = [row for row in kept if row["env_steps"] <= (resume_env_steps or 0)]
        replace_text(run_dir / FILE_NAME, "".join(json.dumps(row) + "\n" for row in kept))
        self._clock, self._started = clock, clock()
        self._warn, self._lost_lines = warn, 0
        self._path = run_dir / FILE_NAME
        self._earlier_s = float(kept[-1].get("wall_s") or 0.0) if kept else 0.0
        self._events = _open_events(run_dir, resume_env_steps) if tensorboard else None

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def wall_s(self) -> float:
        """Seconds of this run so far; a resumed one goes on from its last kept line."""
        return self._earlier_s + self._clock() - self._started

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one line, and flushes it.

        Args:
          row: flat; numbers, numpy or JAX scalars, strings, None. It must have `env_steps`; `wall_s` is added
            unless it is there. Infinities and NaN become null.

        Raises:
          TypeError: a value is none of these; named by its key.
        """
        line = {"env_steps": row["env_steps"], "wall_s": self.wall_s, **row}
        line = {name: _plain(name, value) for name, value in line.items()}
        self._append(json.dumps(line, allow_nan=False) + "\n")
        if self._events is not None:
            for name, value in line.items():
                if name != "env_steps" and isinstance(value, int | float):
                    self._events.add_scalar(TAGS.get(name, f"train/{name}"), value, line["env_steps"])

    def close(self) -> None:
        """Flushes and closes the events."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def _append(self, line: str) -> None:
        # Opened for every line: what a full disk cut off or kept in a buffer must not spoil the next one.
        try:
            with open(self._path, "ab", buffering=0) as file:
                begin = file.tell()
                if file.write(line.encode()) != len(line.encode()):
                    file.truncate(begin)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self._lost_lines:
                self._warn(f"{self._path}: a line could not be written: {error.strerror or error}")
            self._lost_lines += 1


def read_metrics(run_dir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, oldest first; [] if there is none. A line torn by a kill is left out."""
    path = Path(run_dir) / FILE_NAME
    rows = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and type(row.get("env_steps")) is int:
            rows.append(row)
    return rows


def _plain(name: str, value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"metric {name}: expected a scalar, found {type(value).__name__}")


def _open_events(run_dir: Path, resume_env_steps: int | None) -> Any:
    from tensorboardX import SummaryWriter  # imported late: half a second

    return SummaryWriter(
        str(run_dir),
        purge_step=None if resume_env_steps is None else resume_env_steps + 1,
        # the file's own time stamp counts whole seconds, and a second writer would overwrite the first
        filename_suffix=f".{time.time_ns()}",
    )
