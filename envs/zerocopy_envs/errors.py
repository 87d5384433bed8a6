"""The one exception that stands for a mistake of the user's, and the remedies it offers. Imports no JAX."""

from __future__ import annotations

import contextlib
import difflib
import traceback
from collections.abc import Iterable, Iterator


class UserError(ValueError):
    """A bad setting, name, file or environment: one line, never a traceback.

    The line reads `subject: expected ..., found ...; remedy`.

    Args:
      subject: what is wrong, as the user wrote it (`agent.learning_rate`, a path, a slot).
      expected: what would have been right.
      found: what was there.
      remedy: what to do about it.
    """

    def __init__(self, subject: str, *, expected: str = "", found: str = "", remedy: str = ""):
        self.subject, self.expected, self.found, self.remedy = subject, expected, found, remedy
        facts = ", ".join(
            f"{word} {text}" for word, text in (("expected", expected), ("found", found)) if text
        )
        line = f"{subject}: {facts}" if facts else subject
        super().__init__("; ".join(part for part in (line, remedy) if part))


@contextlib.contextmanager
def users_code(subject: str, expected: str) -> Iterator[None]:
    """Whatever the code inside raises comes out as a `UserError` that names the line it comes from.

    Args:
      subject: whose code it is (`environment 'my_env:Maze'`).
      expected: what it was asked to do (`reset to run`).
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.lineno]
        own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
        reason = " ".join(str(error).split()) or "no message"
        place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
        raise UserError(
            subject, expected=expected, found=f"{type(error).__name__}: {reason}{place}"
        ) from error


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A remedy that gives the nearest right name, or "" where none is near."""
    near = nearest(name, names)
    return f"did you mean {near}?" if near else ""


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The right name most like `name`, whatever the case; "" where none reaches `cutoff` (0 to 1)."""
    lower = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=cutoff)
    return lower[matches[0]] if matches else ""


def known(names: Iterable[str]) -> str:
    """A remedy that lists the right names."""
    return f"known: {', '.join(names) or 'none'}"
