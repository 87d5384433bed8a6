"""What a run says: lines on stdout, and on stderr what is wrong."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from zerocopy_seed.checkpoint import CheckpointError


def say(line: str) -> None:
    """Prints a line; a reader that has gone must not end the run."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def complain(line: str) -> None:
    """Prints a line on stderr likewise."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def attempt(action: Callable[..., None], *arguments: Any) -> bool:
    """Whether `action` succeeds: training outlives a checkpoint that cannot be saved; the error is shown."""
    try:
        action(*arguments)
    except CheckpointError as error:
        complain(str(error))
        return False
    return True


def draw(plot: Callable[..., None], subject: Any, path: pathlib.Path) -> None:
    """Calls `plot(subject, path)`: a picture is not worth a finished run."""
    try:
        plot(subject, path)
    except Exception as error:
        complain(f"{path}: not drawn: {error}")
