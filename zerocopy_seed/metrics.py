"""What a run logs: `metrics.jsonl`, and TensorBoard events beside it. Imports no JAX."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zerocopy_envs.errors import UserError
from zerocopy_seed.files import append_whole, replace_text
from zerocopy_seed.tensorboard import EventsFile

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
      warn: called with one line when lines or events begin to be lost (a full disk), and when no longer.
      clock: seconds.

    Raises:
      UserError: the file cannot be begun, or what is past the checkpoint cannot be cut.
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
        try:
            replace_text(run_dir / FILE_NAME, "".join(json.dumps(row) + "\n" for row in kept))
        except OSError as error:
            raise UserError(
                str(run_dir), expected="a directory that can be written", found=error.strerror or str(error)
            ) from error
        self._clock, self._started = clock, clock()
        self._path = run_dir / FILE_NAME
        self._lines, self._scalars = (
            _Losses(self._path, "line", warn),
            _Losses(run_dir, "TensorBoard event", warn),
        )
        self._earlier_s = float(kept[-1].get("wall_s") or 0.0) if kept else 0.0
        purge_step = None if resume_env_steps is None else resume_env_steps + 1
        self._events = EventsFile(run_dir, purge_step) if tensorboard else None

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._events = None

    @property
    def num_lost_lines(self) -> int:
        """Lines of `metrics.jsonl` that could not be written."""
        return self._lines.num_lost

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
        with self._lines.counted():
            append_whole(self._path, (json.dumps(line, allow_nan=False) + "\n").encode())
        if self._events is None:
            return
        scalars = {
            TAGS.get(name, f"train/{name}"): value
            for name, value in line.items()
            if name != "env_steps" and isinstance(value, int | float)
        }
        with self._scalars.counted():
            self._events.add(scalars, line["env_steps"])


class _Losses:
    """Counts what could not be written, and says when that begins and when it is over."""

    def __init__(self, path: Path, what: str, warn: Callable[[str], None]):
        self._path, self._what, self._warn = path, what, warn
        self.num_lost, self._is_losing = 0, False

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Around the writing of one."""
        try:
            yield
        except OSError as error:
            if not self._is_losing:
                self._warn(f"{self._path}: a {self._what} could not be written: {error.strerror or error}")
            self._is_losing = True
            self.num_lost += 1
        else:
            if self._is_losing:
                self._warn(f"{self._path}: {self._what}s are written again; {self.num_lost} are lost")
            self._is_losing = False


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
