"""Memory that the C library keeps for threads."""

from __future__ import annotations

import contextlib
import ctypes
import os

_M_ARENA_MAX = -8  # of <malloc.h>


def share_arenas() -> None:
    """Lets all threads allocate from two arenas, as MALLOC_ARENA_MAX=2 does; nothing where that is set.

    glibc gives threads arenas of their own, up to eight for each core, and keeps what they once held: a
    learner that actors join and leave all day grew by 1 MB a minute. Other C libraries are left alone.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
