"""Float sums that do not stop growing."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from zerocopy_seed.types import Array


class CompensatedSum(NamedTuple):
    """A running float32 sum and the low-order part that rounding cut off (Kahan 1965)."""

    total: Array
    error: Array


def make_sum(shape: tuple[int, ...] = ()) -> CompensatedSum:
    """Zero sums of `shape`."""
    return CompensatedSum(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))


def add(running: CompensatedSum, amount: Array) -> CompensatedSum:
    """The sum with `amount` added: exact for integers to about 2^47, where plain float32 stops at 2^24."""
    amount = amount - running.error
    total = running.total + amount
    return CompensatedSum(total, (total - running.total) - amount)
