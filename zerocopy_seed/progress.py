"""Progress: on a terminal one line that is drawn over, elsewhere a line now and then. Imports no JAX."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

_PLAIN_EVERY_S = 5.0
_CLEAR_TO_END = "\x1b[K"


class Progress:
    """Shows how far a run is; a context manager, so that an error's message begins on a line of its own.

    Args:
      total_env_steps: where the run ends.
      stream: where to show it.
      env_steps: where it begins (a resumed run).
      clock: seconds.
    """

    def __init__(
        self,
        total_env_steps: int,
        stream: TextIO,
        env_steps: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._stream, self._clock = total_env_steps, stream, clock
        self._begin_env_steps, self._begin = env_steps, clock()
        self._refresh = stream.isatty()
        self._return = "-"
        self._line = ""
        self._shown_at = -math.inf
        self._pending = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compiled(self, seconds: float) -> None:
        """Says how long compilation took; the time left is reckoned from here."""
        self._write(f"compiled in {seconds:.1f} s\n")
        self._begin = self._clock()

    def update(self, row: Mapping[str, Any]) -> None:
        """Shows a row of metrics: `env_steps`, and where present `env_steps_per_s` and `episode_return`.

        Of many runs the row has the sum of their `env_steps`, and instead of the latter `episode_returns`.
        """
        now = self._clock()
        given = (row.get("episode_return"), *row.get("episode_returns", ()))
        returns = [value for value in given if value is not None and math.isfinite(value)]
        if returns:
            self._return = f"{sum(returns) / len(returns):.2f}"
        if len(returns) > 1:
            self._return += f" (worst {min(returns):.2f}, best {max(returns):.2f})"
        env_steps = int(row["env_steps"])
        mean_rate = (env_steps - self._begin_env_steps) / max(now - self._begin, 1e-9)
        self._line = self._format(env_steps, row.get("env_steps_per_s", mean_rate), mean_rate)
        self._pending = True
        if self._refresh or now - self._shown_at >= _PLAIN_EVERY_S:
            self._show(now)

    def close(self) -> None:
        """Shows the last row if it was not shown, and ends the line."""
        if self._pending and not self._refresh:
            self._show(self._clock())
        if self._refresh and self._line:
            self._write("\n")
        self._line, self._pending = "", False

    def _format(self, env_steps: int, rate: float, mean_rate: float) -> str:
        fraction = env_steps / self._total if self._total else 1.0
        left = max(self._total - env_steps, 0) / mean_rate if mean_rate > 0 else math.inf
        return (
            f"env_steps {env_steps:,}/{self._total:,} ({min(100, int(100 * fraction))}%)  {rate:,.0f}/s  "
            f"return {self._return}  left {_duration(left)}"
        )

    def _show(self, now: float) -> None:
        if self._refresh:
            # a line that wraps could not be drawn over
            columns = shutil.get_terminal_size().columns
            self._write(f"\r{self._line[: columns - 1]}{_CLEAR_TO_END}")
        else:
            self._write(self._line + "\n")
        self._shown_at, self._pending = now, False

    def _write(self, text: str) -> None:
        # a reader that has gone (`| head`) must not end the run
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
