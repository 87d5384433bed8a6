"""What goes wrong between a learner and its actors. Imports no JAX and no gRPC."""

from __future__ import annotations

from typing import Literal

from zerocopy_envs.errors import UserError

RefusalCode = Literal["INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]


class ProtocolError(UserError):
    """A message that does not fit what was agreed upon.

    Args:
      field: which part of it.
      expected: what would have been right.
      found: what was there.
    """

    def __init__(self, field: str, expected: str, found: str):
        super().__init__(field, expected=expected, found=found)


class Refused(Exception):
    """The learner turns a call down.

    Args:
      code: gRPC's name of the reason. INVALID_ARGUMENT and FAILED_PRECONDITION are for people to mend;
        RESOURCE_EXHAUSTED and UNAVAILABLE may pass, so that it pays to try again.
      message: one line.
    """

    def __init__(self, code: RefusalCode, message: str):
        super().__init__(message)
        self.code: RefusalCode = code
        self.message = message

    @property
    def may_pass(self) -> bool:
        """Whether it pays to try again."""
        return self.code in ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


class Unavailable(Exception):
    """The learner cannot be reached, has no room, or broke off: it pays to try again."""


class RunEnded(Exception):
    """The learner has said goodbye: there is nothing to come back to."""
