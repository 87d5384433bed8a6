"""What is kept of one run while it trains: lines of metrics and checkpoints, each when it is due."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from zerocopy_seed.checkpoint import Checkpointer, CheckpointError
from zerocopy_seed.config import Config
from zerocopy_seed.loops.console import complain, note, report, show_error
from zerocopy_seed.loops.on_device import TrainState, Window
from zerocopy_seed.loops.run_checkpoint import checkpoint_items
from zerocopy_seed.metrics import MetricsWriter
from zerocopy_seed.metrics_page import MetricsPage
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.types import Agent, Counter

DISPATCH_S = 0.3
"""How long a dispatch lasts, about: signals are heard and checkpoints made between two of them."""

_STUCK_S = 30.0

_LINES_PER_DOUBLING = 1000


def line_spacing(env_steps: int, every: int) -> int:
    """env_steps from one line of metrics to the next: `every`, and twice as many whenever the run has become
    twice as long as 1,000 such lines, so that what a run of any length writes stays small.
    """
    return every << max(0, (env_steps // (_LINES_PER_DOUBLING * every)).bit_length() - 1)


class RunRecord:
    """Writes the lines and checkpoints of one run, and knows which updates they are due after.

    Args:
      config: the experiment.
      agent: whose state is saved.
      saves: of its checkpoints.
      metrics: of its lines; None where another host writes them.
      env_steps: where it begins.
      resumed_at: the checkpoint that it goes on from, if any.
      save_replay: whether checkpoints hold the replay.
      name: what is said of it begins so, where it is one of several.
      page: shows its lines too.
    """

    def __init__(
        self,
        config: Config,
        agent: Agent,
        saves: Checkpointer,
        metrics: MetricsWriter | None,
        *,
        env_steps: int,
        resumed_at: int | None,
        save_replay: bool,
        name: str = "",
        page: MetricsPage | None = None,
    ):
        self._agent, self._saves, self._metrics = agent, saves, metrics
        self._save_replay, self._name, self._resumed_at = save_replay, name, resumed_at
        self._total, self._line_every = config.total_env_steps, config.metrics.every_env_steps
        self._save_every_s = config.checkpoint.every_s
        self._steps_per_update = config.env.num_envs * config.agent.unroll_length
        self._line_env_steps = self.env_steps = env_steps
        self._has_line = resumed_at is not None  # of what was learned so far
        self._next_line = self._line_after(env_steps)
        self._line_at = self._saved_at = time.monotonic()
        self._diverged = False
        self._saving_at: int | None = None  # env_steps of the save under way
        self._is_failing = False
        self._num_saves = self._num_failed_saves = 0
        self._environment, self._page = config.env.name, page
        self._num_unusable = self._num_skipped = 0  # not yet said

    @property
    def is_finished(self) -> bool:
        """Whether it is at or past its total."""
        return self.env_steps >= self._total

    @property
    def line_is_due(self) -> bool:
        """Whether a line is to be written."""
        return self.env_steps >= self._next_line

    @property
    def has_news(self) -> bool:
        """Whether something was learned that no line tells of."""
        return self.env_steps > self._line_env_steps or not self._has_line

    def is_stuck(self, now: float) -> bool:
        """Whether nothing that counts was played for long, which a line then tells (NaN alone?)."""
        return self.env_steps == self._line_env_steps and now - self._line_at >= _STUCK_S

    @property
    def has_failed_part(self) -> bool:
        """See `Checkpointer`."""
        return self._saves.has_failed_part

    def save_is_due(self, now: float) -> bool:
        """Whether a checkpoint is to be saved, by the clock."""
        return now - self._saved_at >= self._save_every_s

    def updates_ahead(self, milestone: float = math.inf) -> int:
        """How many updates pass none of these by an update, however few steps they take: the total, a line,
        and `milestone`, in env_steps.
        """
        to_total = max(1, (self._total - self.env_steps) // self._steps_per_update)
        next_stop = int(min(self._next_line, milestone))
        return min(to_total, max(1, -(-(next_stop - self.env_steps) // self._steps_per_update)))

    def write(self, row: dict[str, Any], now: float) -> dict[str, Any]:
        """Writes a line, and says it once if one of its numbers is not finite; the line, with its rate and
        what could not be written so far.
        """
        if self._metrics is None:
            return row
        if not self._saves.is_saving:
            self.wait()
        row["env_steps_per_s"] = (self.env_steps - self._line_env_steps) / (now - self._line_at)
        row["num_saves"] = self._num_saves
        row["num_failed_saves"] = self._num_failed_saves
        row["num_lost_lines"] = self._metrics.num_lost_lines
        self._metrics.write(row)
        if self._page is not None:
            self._page.update(row, self._name)
        self._say_what_was_left_out(row)
        self._diverged = warn_once_diverged(row, self._diverged, self._name)
        self._next_line = self._line_after(self.env_steps)
        self._line_at, self._line_env_steps, self._has_line = now, self.env_steps, True
        return row

    def save(self, state: TrainState) -> bool:
        """Begins to save a checkpoint; whether it could. Of failures in a row the first one is shown."""
        self.wait()  # an earlier save's failure must not stand for this one's
        items = checkpoint_items(self._agent, state, replay=self._save_replay)
        try:
            self._saves.save(self.env_steps, items)
        except CheckpointError as error:
            self._failed(error)
        else:
            self._saving_at = self.env_steps
        self._saved_at = time.monotonic()
        return self._saving_at is not None

    def save_last(self, state: TrainState) -> bool:
        """Begins to save the last one, unless it is the one that the run began with; whether it could."""
        self.wait()
        self._is_failing = False  # why this one fails is shown again
        return self.env_steps == self._resumed_at or self.save(state)

    def wait(self) -> bool:
        """Whether the save under way succeeds, if one is."""
        saved_at, self._saving_at = self._saving_at, None
        try:
            self._saves.wait()
        except CheckpointError as error:
            self._failed(error)
            return False
        if saved_at is None:
            return True
        self._num_saves += 1
        line = f"{self._subject}checkpoint of {saved_at:,} env_steps saved"
        note("checkpoint_saved", line, env_steps=saved_at, num_saves=self._num_saves)
        if self._is_failing:
            self._is_failing = False
            complain(
                f"{self._subject}checkpoints are saved again, after {self._num_failed_saves} that were not"
            )
        return True

    def _failed(self, error: CheckpointError) -> None:
        self._num_failed_saves += 1
        note("checkpoint_failed", f"{self._subject}{error}", env_steps=self.env_steps)
        if not self._is_failing:  # shown even where the journal has no room for more of them
            show_error(str(error))
        self._is_failing = True

    def _say_what_was_left_out(self, row: dict[str, Any]) -> None:
        self._num_unusable += row.get("num_unusable_rows", 0)
        self._num_skipped += row.get("num_skipped_updates", 0)
        at = f"at {self.env_steps:,} env_steps"
        if self._num_unusable:
            count, said = self._num_unusable, "could not be used: numbers that are not finite"
            line = f"{self._subject}{self._environment}: {count:,} timesteps {said}, {at}"
            fields = {"num_rows": count, "environment": self._environment, "env_steps": self.env_steps}
            self._num_unusable *= not report("unusable_rows", line, **fields)
        if self._num_skipped:
            count, said = self._num_skipped, "left out: gradients that are not finite"
            line = f"{self._subject}{count:,} steps of the optimiser {said}, {at}"
            fields = {"num_skipped": count, "env_steps": self.env_steps}
            self._num_skipped *= not report("skipped_updates", line, **fields)

    @property
    def _subject(self) -> str:
        return f"{self._name}: " if self._name else ""

    def _line_after(self, env_steps: int) -> int:
        spacing = line_spacing(env_steps, self._line_every)
        return (env_steps // spacing + 1) * spacing


def metrics_row(
    env_steps: Counter, num_updates: Counter, window: Window, names: tuple[str, ...]
) -> dict[str, Any]:
    """A line of metrics.jsonl: counters, means over the window's updates, and episode figures if any.

    Metrics called `num_*` are summed.

    Args:
      env_steps: of the run.
      num_updates: of the run.
      window: since the last line, on the host.
      names: of its metrics.
    """
    episodes, num_episodes = window.episodes, as_int(window.episodes.num_episodes)
    row: dict[str, Any] = {
        "env_steps": as_int(env_steps),
        "num_updates": as_int(num_updates),
        "num_episodes": num_episodes,
    }
    if num_episodes:
        row["episode_return"] = float(episodes.return_sum.total) / num_episodes
        row["episode_length"] = as_int(episodes.length_sum) / num_episodes
    if not int(window.num_updates):
        return row
    sums = np.asarray(window.metric_sums.total).tolist()
    in_window = int(window.num_updates)
    return row | {
        name: round(total) if name.startswith("num_") else total / in_window
        for name, total in zip(names, sums, strict=True)
    }


def warn_once_diverged(row: dict[str, Any], warned: bool, name: str = "") -> bool:
    """Says the first time that a metric is not finite; whether it was said."""
    broken = [key for key, value in row.items() if not math.isfinite(value)]
    if broken and not warned:
        subject = f"{name}: " if name else ""
        complain(
            f"{subject}{', '.join(broken)}: not finite at {row['env_steps']:,} env_steps; "
            "updates of such numbers are left out (num_skipped_updates); if there are many, the run has "
            "diverged, or its environment returns numbers that are far too large"
        )
    return warned or bool(broken)
