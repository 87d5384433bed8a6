"""What a run says: lines on stdout, on stderr what is wrong, and both as events in its journal."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from zerocopy_seed import hosts
from zerocopy_seed.checkpoint import CheckpointError
from zerocopy_seed.journal import FILE_NAME, Journal

_journal: Journal | None = None  # like stdout and stderr, the process's


@contextlib.contextmanager
def keep_journal(run_dir: pathlib.Path, run_id: str) -> Iterator[None]:
    """From its beginning to its end, what is noted and complained about is in the journal of `run_dir`.

    Of several hosts each keeps its own: `events.jsonl`, `events.1.jsonl`, ...
    """
    global _journal
    path = run_dir / FILE_NAME
    if not hosts.is_first():
        path = path.with_suffix(f".{hosts.index()}{path.suffix}")
    with Journal(path, run_id) as _journal:
        try:
            yield
        finally:
            _journal = None


def say(line: str) -> None:
    """Prints a line, on the first host."""
    if hosts.is_first():
        say_of_host(line)


def say_of_host(line: str) -> None:
    """Prints a line that is this host's own; a reader that has gone must not end the run."""
    with contextlib.suppress(OSError):
        print(_of_host(line), flush=True)


def note(event: str, line: str, **fields: Any) -> bool:
    """Writes an event into the journal, if one is kept; False if it was held back: too many of its kind."""
    journal = _journal  # another thread may end it meanwhile
    return journal is None or journal.note(event, line, **fields)


def complain(line: str) -> None:
    """Prints a line on stderr likewise; in the journal it is a `warning`."""
    note("warning", line)
    show_error(line)


def report(event: str, line: str, **fields: Any) -> bool:
    """An event that people should see: noted, and printed on stderr unless it was held back; which it was."""
    is_written = note(event, line, **fields)
    if is_written:
        show_error(line)
    return is_written


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


def show_error(line: str) -> None:
    """Prints a line on stderr, which names the host where there are several; and nothing else."""
    with contextlib.suppress(OSError):
        print(_of_host(line), file=sys.stderr, flush=True)


def _of_host(line: str) -> str:
    return f"host {hosts.index()}: {line}" if hosts.count() > 1 else line
