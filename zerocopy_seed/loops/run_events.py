"""What every run notes in its journal as it begins and ends, be it one or many members.

`env_steps` are those of all members together; `fields` are for what else there is to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zerocopy_seed.loops.console import note
from zerocopy_seed.loops.signals import StopRequest


def note_resumed(env_steps: int, notes: Sequence[str], **fields: Any) -> None:
    """It goes on from a checkpoint; `notes` say what of that was not as it should be."""
    line = "; ".join((f"resumed at {env_steps:,} env_steps", *notes))
    note("resumed", line, env_steps=env_steps, **fields)


def note_training(env_steps: int, **fields: Any) -> None:
    """Everything is compiled."""
    note("training", f"training from {env_steps:,} env_steps", env_steps=env_steps, **fields)


def note_signal(stop: StopRequest, env_steps: int, **fields: Any) -> None:
    """It was asked to stop, if it was."""
    if stop:
        note("signal", f"{stop.signal_name}: saving, then stopping", env_steps=env_steps, **fields)


def note_ended(env_steps: int, *, saved: bool, failure: str = "", **fields: Any) -> None:
    """It has ended: whether its last checkpoint is saved, and why it could not go on, if so."""
    note("ended", failure or "training has ended", env_steps=env_steps, saved=saved, **fields)
