"""Prioritised sequence replay: pure, on the device, steps stored once."""

from zerocopy_seed.replay.importance import importance_weights
from zerocopy_seed.replay.layout import Layout
from zerocopy_seed.replay.replay import (
    Draw,
    Replay,
    Rows,
    insert,
    make_replay,
    num_uniforms,
    sample,
    set_masses,
)

__all__ = [
    "Draw",
    "Layout",
    "Replay",
    "Rows",
    "importance_weights",
    "insert",
    "make_replay",
    "num_uniforms",
    "sample",
    "set_masses",
]
