"""One training run at a time in a run directory."""

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
    try:
        file = open(run_dir / ".lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(
            f"--run-dir {run_dir}", expected="a directory that can be written", found=error.strerror or ""
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"--run-dir {run_dir}",
                expected="a directory that nobody trains in",
                found="another training process there",
                remedy="stop it, or choose another directory",
            ) from error
        yield
