"""The one exception that stands for a mistake of the user's."""


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
        super().__init__("; ".join(part for part in (f"{subject}: {facts}" if facts else subject, remedy) if part))
