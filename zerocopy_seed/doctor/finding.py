"""One line of what the doctor says. Imports no JAX."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was looked at, and what was found.

    Attributes:
      subject: the first column.
      found: the second.
      remedy: what to do about it.
      is_broken: whether something that was asked for does not work; what is merely missing is not broken.
    """

    subject: str
    found: str
    remedy: str = ""
    is_broken: bool = False
