"""Importance weights of samples that were not drawn uniformly."""

from __future__ import annotations

import jax.numpy as jnp

from zerocopy_seed.ops.collectives import max_over_devices
from zerocopy_seed.types import Array


def importance_weights(probability: Array, exponent: Array | float, axis_name: str | None = None) -> Array:
    """(1 / P)^exponent over the batch's largest (prioritised replay, arXiv:1511.05952, sec. 3.4).

    The number of entries in their (1 / (N P))^beta is the same for all, so it cancels.

    Args:
      probability: [n] float32 of each sample; 0 where nothing could be drawn.
      exponent: beta; 0 gives 1 to all that was drawn.
      axis_name: mesh axis over which the batch is spread, or None.

    Returns:
      [n] float32 in [0, 1]; 0 where the probability is.
    """
    drawn = probability > 0.0
    # The least probability has the largest weight; so divided nothing overflows.
    least = -max_over_devices(-jnp.where(drawn, probability, jnp.inf).min(), axis_name)
    ratio = jnp.where(drawn, least / jnp.where(drawn, probability, 1.0), 0.0)
    return jnp.where(drawn, ratio**exponent, 0.0)
