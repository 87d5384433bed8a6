"""Epsilon-greedy acting, and which slot explores how much."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_seed.ops.distributions import ILLEGAL_LOGIT

Array = jax.Array


def epsilon_ladder(num_slots: int, base: float, alpha: float) -> np.ndarray:
    """base^(1 + alpha i / (N - 1)) for i = 0..N-1 (Ape-X, arXiv:1803.00933, sec. 4.1): [N] float32."""
    exponent = 1.0 + alpha * np.arange(num_slots) / max(num_slots - 1, 1)
    return np.power(base, exponent).astype(np.float32)


def deal_rungs(num_slots: int) -> np.ndarray:
    """Which rung of the ladder each slot stands on: a permutation [N] int32.

    The first and the last rung, then always the middle of the widest gaps, so that the slots 0..k-1 span the
    ladder for any k: actors come one by one, and early ones must not all explore alike.
    """
    # 0, 1, 1/2, 1/4, 3/4, 1/8, 5/8, ...: bits of the count, mirrored
    count = np.arange(1, max(num_slots - 1, 1))
    mirrored, scale = np.zeros(count.shape), 0.5
    for bit in range(num_slots.bit_length()):
        mirrored += (count >> bit & 1) * scale
        scale /= 2
    places = np.concatenate([[0.0, 1.0], mirrored])[:num_slots]
    rungs = np.empty(num_slots, np.int32)
    rungs[np.argsort(places, kind="stable")] = np.arange(num_slots, dtype=np.int32)
    return rungs


def epsilon_greedy(q: Array, epsilon: Array | float, uniforms: Array) -> Array:
    """The best action, or with probability epsilon any legal one, all alike.

    Args:
      q: [B, A]; `ILLEGAL_LOGIT` where an action is illegal.
      epsilon: [B], or a scalar.
      uniforms: [B, 2] float32 in [0, 1).

    Returns:
      [B] int32.
    """
    legal = is_legal(q)
    # The drawn one among the legal ones, counted from 1.
    count = jnp.cumsum(legal.astype(jnp.int32), -1)
    drawn = 1 + (uniforms[:, 1] * count[:, -1]).astype(jnp.int32)
    explored = jnp.argmax(count >= jnp.minimum(drawn, count[:, -1])[:, None], -1)
    return jnp.where(uniforms[:, 0] < epsilon, explored, jnp.argmax(q, -1)).astype(jnp.int32)


def is_legal(q: Array) -> Array:
    """Which actions may be taken: [..., A] bool; all of them where none may."""
    legal = q > 0.5 * ILLEGAL_LOGIT
    return legal | ~legal.any(-1, keepdims=True)
