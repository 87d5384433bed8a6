"""Dense layers over any number of leading axes, as one matrix product of all rows.

With more than one leading axis XLA on CPU transposes a copy of the cotangent for the weights' gradient, which
takes as long as the product.
"""

from __future__ import annotations

import flax.linen as nn
import jax


def matrix_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """[..., F] times [F, N] -> [..., N]."""
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


class Dense(nn.Dense):
    """linen's own layer, [..., F] -> [..., features], with the same parameters."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        rows = super().__call__(inputs.reshape(-1, inputs.shape[-1]))
        return rows.reshape(*inputs.shape[:-1], self.features)
