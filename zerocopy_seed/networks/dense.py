"""A dense layer over any number of leading axes."""

from __future__ import annotations

import flax.linen as nn
import jax


class Dense(nn.Dense):
    """linen's, as one matrix product of all rows: [..., F] -> [..., features].

    With more than one leading axis XLA on CPU transposes a copy of the cotangent for the weights' gradient,
    which takes as long as the product.
    """

    def __call__(self, inputs: jax.Array) -> jax.Array:
        rows = super().__call__(inputs.reshape(-1, inputs.shape[-1]))
        return rows.reshape(*inputs.shape[:-1], self.features)
