"""When to try again after a failure. Imports no JAX."""

from __future__ import annotations

import random
import time

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0


class Retry:
    """Delays drawn uniformly below a ceiling that doubles from 0.1 s to 10 s: a thousand actors spread out.

    Args:
      reconnect_s: how long to go on failing; 0 for not at all, `inf` for ever.
    """

    def __init__(self, reconnect_s: float):
        self._reconnect_s = reconnect_s
        self._num_failures = 0
        self._failing_since = 0.0

    @property
    def failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._num_failures > 0

    def succeeded(self) -> None:
        """Begins anew."""
        self._num_failures = 0

    def failed(self) -> float | None:
        """Seconds to wait before the next attempt; None when it is time to give up."""
        now = time.monotonic()
        if not self._num_failures:
            self._failing_since = now
        left_s = self._failing_since + self._reconnect_s - now
        if left_s <= 0:
            return None
        ceiling = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._num_failures, 10))
        self._num_failures += 1
        return min(random.uniform(0, ceiling), left_s)
