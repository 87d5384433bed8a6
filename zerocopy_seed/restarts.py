"""When to start anew what has ended. Imports no JAX."""

from __future__ import annotations

EARLY_S = 60.0
"""Who lived longer is started anew at once."""


def restart_delay_s(early_ends: int, longest_s: float = 60.0) -> float:
    """How long to wait before an actor is started anew that so many times in a row ended soon.

    At once after the first, then 1, 2, 4 s and so on up to `longest_s`: what ends as it starts must not keep
    its machine busy.
    """
    return min(longest_s, 2.0 ** min(early_ends - 2, 10)) if early_ends > 1 else 0.0
