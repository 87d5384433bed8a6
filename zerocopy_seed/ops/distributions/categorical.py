"""Discrete actions: one categorical distribution, or one per head.

A logit of -inf marks an illegal action. Logits are raised to a finite floor before anything else, so that
probabilities of illegal actions are exactly 0 while every result and every gradient stays finite.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from zerocopy_seed.ops.distributions.types import ActionDistribution, Array

ILLEGAL_LOGIT = -1e9  # finite: 0 * -inf is NaN, in values and in gradients
_MAX_UNROLLED_ACTIONS = 64


def apply_action_mask(logits: Array, mask: Array) -> Array:
    """Marks actions as illegal.

    Args:
      logits: [..., P] float32.
      mask: [..., P] bool, True where legal. A row without a legal action comes out uniform.

    Returns:
      [..., P]; `ILLEGAL_LOGIT` where illegal, with no gradient there.
    """
    return jnp.where(mask.astype(bool), logits, ILLEGAL_LOGIT)


def make_categorical(num_values: int) -> ActionDistribution:
    """One of `num_values` actions; the parameters are logits."""
    return ActionDistribution(num_values, _num_uniforms(num_values), _sample, _mode, _log_prob, _entropy)


def make_multi_categorical(num_values: tuple[int, ...]) -> ActionDistribution:
    """Heads of so many values each; the parameters are their logits, concatenated.

    Heads are independent, so that log-probabilities and entropies are sums over heads.
    """
    starts = [sum(num_values[:head]) for head in range(len(num_values) + 1)]
    num_uniforms = [_num_uniforms(n) for n in num_values]

    def heads(params: Array) -> list[Array]:
        return [params[..., start:end] for start, end in zip(starts, starts[1:], strict=False)]

    def sample(params: Array, uniforms: Array) -> Array:
        actions, used = [], 0
        for logits, count in zip(heads(params), num_uniforms, strict=True):
            actions.append(_sample(logits, uniforms[..., used : used + count]))
            used += count
        return jnp.stack(actions, -1)

    def mode(params: Array) -> Array:
        return jnp.stack([_mode(logits) for logits in heads(params)], -1)

    def log_prob(params: Array, action: Array) -> Array:
        return sum((_log_prob(x, action[..., i]) for i, x in enumerate(heads(params))), start=jnp.float32(0))

    def entropy(params: Array) -> Array:
        return sum((_entropy(logits) for logits in heads(params)), start=jnp.float32(0))

    return ActionDistribution(starts[-1], sum(num_uniforms), sample, mode, log_prob, entropy)


def _log_softmax(logits: Array) -> Array:
    return jax.nn.log_softmax(jnp.maximum(logits.astype(jnp.float32), ILLEGAL_LOGIT))


def _mode(logits: Array) -> Array:
    return jnp.argmax(logits, -1).astype(jnp.int32)


def _log_prob(logits: Array, action: Array) -> Array:
    # A comparison, not a gather: a gather's gradient is a scatter, which XLA runs slowly on CPU.
    values = jnp.arange(logits.shape[-1], dtype=jnp.int32).reshape((1,) * action.ndim + (-1,))
    return jnp.sum(jnp.where(action[..., None] == values, _log_softmax(logits), 0.0), -1)


def _entropy(logits: Array) -> Array:
    log_probs = _log_softmax(logits)
    return -jnp.sum(jnp.exp(log_probs) * log_probs, -1)


def _num_uniforms(num_values: int) -> int:
    return 1 if num_values <= _MAX_UNROLLED_ACTIONS else num_values


def _sample(logits: Array, uniforms: Array) -> Array:
    probs = jnp.exp(_log_softmax(logits))
    if uniforms.shape[-1] > 1:
        # Gumbel's argmax as a race of exponential clocks, with one logarithm instead of two.
        return _mode(probs / -jnp.log(uniforms))
    # Inverse distribution function: one draw a row, 3 to 6 times cheaper on CPU than a draw per action.
    # Adding in order keeps the sums monotone, so that an action of probability 0 is never chosen.
    sums = [probs[..., 0]]
    for action in range(1, logits.shape[-1]):
        sums.append(sums[-1] + probs[..., action])
    threshold = uniforms[..., 0] * sums[-1]
    below = [(total <= threshold).astype(jnp.int32) for total in sums[:-1]]
    return sum(below, start=jnp.zeros(threshold.shape, jnp.int32))
