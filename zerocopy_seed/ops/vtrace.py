"""V-trace: off-policy corrected value targets and policy-gradient advantages."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_seed.types import Array

# Unclipped ratios multiply along a trace without bound. These keep every result finite, and its square too,
# and lie beyond anything that is still an estimate.
_MAX_LOG_RHO = 20.0
_MAX_CORRECTION = 1e12
_MAX_ADVANTAGE = 1e15


class VTrace(NamedTuple):
    """`targets` v_t and `advantages`, both [T, B] float32, gradients stopped."""

    targets: Array
    advantages: Array


def clipped_ratio(log_rhos: Array, bound: Array | float) -> Array:
    """min(bound, exp(log_rhos)), finite whatever the logarithm is."""
    return jnp.minimum(jnp.exp(jnp.minimum(log_rhos, _MAX_LOG_RHO)), bound)


def vtrace(
    values: Array,
    rewards: Array,
    discounts: Array,
    log_rhos: Array,
    valid: Array,
    *,
    lambda_: Array | float = 1.0,
    clip_rho: Array | float = 1.0,
    clip_c: Array | float = 1.0,
    clip_pg_rho: Array | float = 1.0,
) -> VTrace:
    """Off-policy corrected value targets and advantages (arXiv:1802.01561, eq. 1 and section 4.2).

    delta_t = rho_t (r_t + gamma_t V_{t+1} - V_t)
    v_t = V_t + delta_t + gamma_t c_t (v_{t+1} - V_{t+1})
    advantage_t = rho_pg_t (r_t + gamma_t v_{t+1} - V_t)

    A row that is not valid cuts every trace: its target is V_t, its advantage 0.

    Args:
      values: [T+1, B] float32, the learner's estimates; row T only bootstraps.
      rewards: [T, B] float32, earned by each action.
      discounts: [T, B] float32, gamma times the environment's discount; 0 at a termination.
      log_rhos: [T, B] float32, target minus behaviour log-probability.
      valid: [T, B] bool, False where timestep t+1 is FIRST.
      lambda_: trace decay, in c_t = lambda min(clip_c, ratio).
      clip_rho: bound of the ratio in delta; inf leaves it (then limited only to stay finite).
      clip_c: bound of the ratio in the traces.
      clip_pg_rho: bound of the ratio in the advantages.

    Returns:
      VTrace(targets, advantages).

    Raises:
      AssertionError: ranks or shapes differ from the above.
    """
    chex.assert_rank([values, rewards, discounts, log_rhos, valid], 2)
    chex.assert_equal_shape([values[:-1], rewards, discounts, log_rhos, valid])

    mask = valid.astype(values.dtype)
    # Invalid rows may hold anything, NaN included: they are replaced, not multiplied by 0.
    log_rhos = jnp.where(valid, log_rhos, 0.0)
    rewards = jnp.where(valid, rewards, 0.0)
    discounts = jnp.where(valid, discounts, 0.0)
    td_errors = rewards + discounts * values[1:] - values[:-1]
    deltas = mask * clipped_ratio(log_rhos, clip_rho) * td_errors
    decays = discounts * lambda_ * clipped_ratio(log_rhos, clip_c)

    def backward(correction, row):
        delta, decay = row
        correction = jnp.clip(delta + decay * correction, -_MAX_CORRECTION, _MAX_CORRECTION)
        return correction, correction

    _, corrections = lax.scan(backward, jnp.zeros_like(deltas[-1]), (deltas, decays), reverse=True, unroll=8)
    targets = values[:-1] + corrections
    next_targets = jnp.concatenate([targets[1:], values[-1:]])
    ratios = clipped_ratio(log_rhos, clip_pg_rho)
    advantages = mask * ratios * (rewards + discounts * next_targets - values[:-1])
    advantages = jnp.clip(advantages, -_MAX_ADVANTAGE, _MAX_ADVANTAGE)
    return jax.tree.map(lax.stop_gradient, VTrace(targets, advantages))
