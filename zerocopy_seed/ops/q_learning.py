"""Q-learning over sequences: value rescaling, n-step double-Q targets, priorities."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

RESCALE_EPSILON = 1e-3


class QLearning(NamedTuple):
    """`targets` (gradients stopped) and `td_errors`, targets - Q of the actions: [T, B], 0 if invalid."""

    targets: Array
    td_errors: Array


def value_rescale(x: Array) -> Array:
    """h(x) = sign(x)(sqrt(|x| + 1) - 1) + eps x, eps = 1e-3 (arXiv:1805.11593, prop. A.2); any shape."""
    magnitude = jnp.abs(x)
    # sqrt(a + 1) - 1 without the difference, which loses small values
    return x / (jnp.sqrt(magnitude + 1.0) + 1.0) + RESCALE_EPSILON * x


def value_rescale_inverse(x: Array) -> Array:
    """The inverse of `value_rescale`; any shape.

    With u = sqrt(|y| + 1) the positive root of eps u^2 + u = |x| + 1 + eps, |y| = (u - 1)(u + 1) and
    u - 1 = |x| / (eps (u + 1) + 1), which loses nothing in float32.
    """
    total = jnp.abs(x) + 1.0 + RESCALE_EPSILON
    root = 2.0 * total / (jnp.sqrt(1.0 + 4.0 * RESCALE_EPSILON * total) + 1.0)
    return x * (root + 1.0) / (RESCALE_EPSILON * (root + 1.0) + 1.0)


def n_step_returns(
    bootstrap: Array, rewards: Array, discounts: Array, valid: Array, *, n_step: int, rescale: bool
) -> Array:
    """Rewards of up to n steps and then the bootstrap value, episode by episode (R2D2, sec. 2.3).

    The sum ends at a LAST, bootstrapping there unless it terminated, and at row T.

    Args:
      bootstrap: [T+1, B] value of each row's state, rescaled where `rescale`.
      rewards: [T, B] earned by each action.
      discounts: [T, B] gamma times the environment's discount; 0 at a termination.
      valid: [T, B] bool; False where timestep t+1 is FIRST.
      n_step: n, static.
      rescale: whether values are h of returns.

    Returns:
      [T, B]; 0 where invalid.
    """
    values = value_rescale_inverse(bootstrap) if rescale else bootstrap
    later = values[1:]
    # whether the sum may go on past row t+1
    goes_on = jnp.concatenate([valid[1:], jnp.zeros_like(valid[:1])])
    total = rewards + discounts * later
    for _ in range(min(n_step, rewards.shape[0]) - 1):
        following = jnp.concatenate([total[1:], later[-1:]])
        total = rewards + discounts * jnp.where(goes_on, following, later)
    return jnp.where(valid, value_rescale(total) if rescale else total, 0.0)


def n_step_double_q(
    q_online: Array,
    q_target: Array,
    actions: Array,
    rewards: Array,
    discounts: Array,
    valid: Array,
    *,
    n_step: int,
    rescale: bool,
    double: bool = True,
) -> QLearning:
    """n-step double Q-learning (arXiv:1509.06461, eq. 4; R2D2, sec. 2.3).

    Args:
      q_online: [T+1, B, A] of the network that learns; row T only bootstraps.
      q_target: [T+1, B, A] of the target network.
      actions: [T, B] int32, taken.
      rewards: [T, B] earned by each action.
      discounts: [T, B] gamma times the environment's discount; 0 at a termination.
      valid: [T, B] bool; False where timestep t+1 is FIRST.
      n_step: rewards before the bootstrap, static.
      rescale: Q-values are h of returns.
      double: bootstrap from the action that `q_online` prefers; False: the one that `q_target` prefers.

    Raises:
      ValueError: shapes that do not fit each other.
    """
    if q_online.shape != q_target.shape or q_online.ndim != 3:
        raise ValueError(
            f"q_online, q_target: expected one shape [T+1, B, A], found {q_online.shape}, {q_target.shape}"
        )
    rows = (q_online.shape[0] - 1, q_online.shape[1])
    for name, array in (
        ("actions", actions),
        ("rewards", rewards),
        ("discounts", discounts),
        ("valid", valid),
    ):
        if array.shape != rows:
            raise ValueError(f"{name}: expected {rows}, as q_online has one row more, found {array.shape}")
    chooser = q_online if double else q_target
    bootstrap = q_of(q_target, jnp.argmax(chooser, -1))
    targets = lax.stop_gradient(
        n_step_returns(bootstrap, rewards, discounts, valid, n_step=n_step, rescale=rescale)
    )
    return QLearning(targets, jnp.where(valid, targets - q_of(q_online[:-1], actions), 0.0))


def q_of(q: Array, actions: Array) -> Array:
    """Q [..., A] of actions [...] int32."""
    # A comparison, not a gather: a gather's gradient is a scatter, which XLA runs slowly on CPU.
    values = jnp.arange(q.shape[-1], dtype=actions.dtype).reshape((1,) * actions.ndim + (-1,))
    return jnp.sum(jnp.where(actions[..., None] == values, q, 0.0), -1)


def sequence_priority(td_errors: Array, valid: Array, *, eta: Array | float) -> Array:
    """eta max|td| + (1 - eta) mean|td| over valid rows (R2D2, sec. 2.3).

    Args:
      td_errors: [T, B].
      valid: [T, B] bool.
      eta: weight of the largest.

    Returns:
      [B]; 0 without a valid row.
    """
    magnitude = jnp.where(valid, jnp.abs(td_errors), 0.0)
    mean = magnitude.sum(0) / jnp.maximum(valid.sum(0), 1)
    return eta * magnitude.max(0) + (1.0 - eta) * mean
