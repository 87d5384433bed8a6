"""Counts beyond 2^31 without 64-bit integers on the device."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from zerocopy_seed.types import Array, Counter


def make_counter(value: int = 0) -> Counter:
    """A `Counter` that holds `value`, 0 <= value < 2^64."""
    return Counter(jnp.uint32(value >> 32), jnp.uint32(value & 0xFFFFFFFF))


def increment(counter: Counter, amount: Array) -> Counter:
    """`counter` plus a non-negative integer scalar below 2^31."""
    low = counter.low + amount.astype(jnp.uint32)
    carry = (low < counter.low).astype(jnp.uint32)
    return Counter(counter.high + carry, low)


def as_float(counter: Counter) -> Array:
    """The count as float32, exact to 24 bits: for schedules, not for counting."""
    return counter.high.astype(jnp.float32) * 2.0**32 + counter.low.astype(jnp.float32)


def as_int(counter: Counter) -> int:
    """The count as a Python int; waits for the device."""
    return (int(np.asarray(counter.high)) << 32) | int(np.asarray(counter.low))
