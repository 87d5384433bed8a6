"""Bounded actions: a normal distribution with a diagonal covariance, squashed into (-1, 1) by tanh.

a = tanh(u), u ~ N(mean, std^2), so that log p(a) = log N(u) - sum log(1 - tanh(u)^2) (arXiv:1801.01290,
appendix C). Everything is a function of u, which is stored: from an a that rounds to 1 it cannot be had back.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zerocopy_seed.ops.distributions.types import ActionDistribution, Array

MIN_STD = 1e-3
"""Least standard deviation of u."""

_LOG_2 = math.log(2.0)
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
# Gauss-Hermite: an expectation over N(0, 1) as a weighted sum.
_PLACES, _WEIGHTS = (tuple(map(float, x)) for x in np.polynomial.hermite_e.hermegauss(6))
_WEIGHTS = tuple(weight / sum(_WEIGHTS) for weight in _WEIGHTS)


def make_squashed_gaussian(shape: tuple[int, ...]) -> ActionDistribution:
    """The distribution of actions of `shape`, whose A numbers (1 for shape ()) are independent.

    Its parameters are A means of u and A numbers x, std = `MIN_STD` + softplus(x). A largest std is not
    needed: the entropy of the action, unlike that of u, falls again where it is too large.
    """
    size = math.prod(shape)

    def mean_and_std(params: Array) -> tuple[Array, Array]:
        mean, x = params[..., :size], params[..., size:]
        return mean, MIN_STD + jax.nn.softplus(x)

    def sample(params: Array, uniforms: Array) -> Array:
        mean, std = mean_and_std(params)
        return mean + std * standard_normal(uniforms)

    def mode(params: Array) -> Array:
        return params[..., :size]

    def log_prob(params: Array, raw: Array) -> Array:
        mean, std = mean_and_std(params)
        log_density = -0.5 * jnp.square((raw - mean) / std) - jnp.log(std) - _HALF_LOG_TAU
        return jnp.sum(log_density - _log_slope(raw), -1)

    def entropy(params: Array) -> Array:
        mean, std = mean_and_std(params)
        # Of u, plus the mean of the logarithm of tanh's slope, which has no closed form. A sum over places
        # has no noise, unlike one drawn place (Brax's PPO), and is right within 0.06 at std 2.
        mean_slope = jnp.float32(0)
        for place, weight in zip(_PLACES, _WEIGHTS, strict=True):
            mean_slope += weight * _log_slope(mean + place * std)
        return jnp.sum(0.5 + _HALF_LOG_TAU + jnp.log(std) + mean_slope, -1)

    def to_action(raw: Array) -> Array:
        return jnp.tanh(raw).reshape(*raw.shape[:-1], *shape)

    return ActionDistribution(2 * size, size, sample, mode, log_prob, entropy, to_action, is_squashed=True)


def standard_normal(uniforms: Array) -> Array:
    """Multiples of 2^-23 in [0, 1) -> N(0, 1), by the inverse distribution function: within +-5.2."""
    # In the middle of its 2^-23 each: 0 would give -inf, and the mean would not be 0.
    return math.sqrt(2.0) * lax.erf_inv(2.0 * uniforms - 1.0 + 2.0**-23)


def inverse_softplus(value: float) -> float:
    """x with softplus(x) = value > 0."""
    return value + math.log(-math.expm1(-value))


def _log_slope(raw: Array) -> Array:
    """log(1 - tanh(u)^2), exact where tanh(u) rounds to 1."""
    return 2.0 * (_LOG_2 - raw - jax.nn.softplus(-2.0 * raw))
