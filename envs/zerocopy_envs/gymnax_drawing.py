"""Pictures of gymnax environments whose observation is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_HEIGHT, _WIDTH = 160, 240
_METRE = _WIDTH / 4.8  # pixels; the track ends 2.4 metres from its middle
_TRACK = 120  # row of the cart's axis
_POLE = 1.0  # metres

_DARK, _BROWN, _GREY = (40, 40, 40), (205, 150, 95), (150, 150, 150)


def draw_cart_pole(state: Any) -> jax.Array:
    """uint8 [160, 240, 3] of gymnax's CartPole state: position `x` in metres, angle `theta` in radians."""
    rows = jnp.arange(_HEIGHT, dtype=jnp.float32)[:, None]
    columns = jnp.arange(_WIDTH, dtype=jnp.float32)[None, :]
    across, up = columns - (_WIDTH / 2 + _METRE * state.x), _TRACK - rows
    along = across * jnp.sin(state.theta) + up * jnp.cos(state.theta)
    aside = across * jnp.cos(state.theta) - up * jnp.sin(state.theta)
    shapes = (
        (jnp.abs(rows - _TRACK - 8) < 1, _GREY),
        ((jnp.abs(across) < 16) & (jnp.abs(up) < 8), _DARK),
        ((jnp.abs(aside) < 3) & (along > 0) & (along < _POLE * _METRE), _BROWN),
    )
    picture = jnp.full((_HEIGHT, _WIDTH, 3), 255, jnp.uint8)
    for inside, color in shapes:
        inside = jnp.broadcast_to(inside, (_HEIGHT, _WIDTH))[..., None]
        picture = jnp.where(inside, jnp.array(color, jnp.uint8)[None, None], picture)
    return picture


DRAWINGS: dict[str, Callable[[Any], jax.Array]] = {"CartPole-v1": draw_cart_pole}
"""By gymnax's name: its own state -> uint8 [H, W, 3]."""
