"""One process at a time in a directory."""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator

from zerocopy_envs.errors import UserError


@contextlib.contextmanager
def lock_run_dir(run_dir: pathlib.Path) -> Iterator[None]:
    """Holds `run_dir` (which must exist) for this process; the lock goes with the process, however it ends.

    Raises:
      UserError: another process trains there, or the directory cannot be written.
    """
    with lock_directory(run_dir, f"--run-dir {run_dir}", "trains", "training"):
        yield


@contextlib.contextmanager
def lock_directory(directory: pathlib.Path, subject: str, verb: str, what: str) -> Iterator[None]:
    """Holds a directory as `lock_run_dir` does.

    Args:
      directory: must exist.
      subject: how the user named it.
      verb: what one process at a time does there: `trains`.
      what: which other process is in the way: `training`.

    Raises:
      UserError: there is one, or the directory cannot be written.
    """
    try:
        file = open(directory / ".lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(
            subject, expected="a directory that can be written", found=error.strerror or ""
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                subject,
                expected=f"a directory that nobody {verb} in",
                found=f"another {what} process there",
                remedy="stop it, or choose another directory",
            ) from error
        yield
