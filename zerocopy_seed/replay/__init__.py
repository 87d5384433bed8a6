"""Prioritised sequence replay: pure, on the device, steps stored once."""

from zerocopy_seed.replay.importance import importance_weights
from zerocopy_seed.replay.replay import (
    Draw,
    Replay,
    insert,
    make_replay,
    num_uniforms,
    sample,
    set_masses,
)
from zerocopy_seed.replay.ring import Rows, Windows

__all__ = [
    "Draw",
    "Replay",
    "Rows",
    "Windows",
    "importance_weights",
    "insert",
    "make_replay",
    "num_uniforms",
    "sample",
    "set_masses",
]
