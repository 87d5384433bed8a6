"""What turns an observation into a vector of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from zerocopy_seed.networks.conv import Conv, Method

Activation = Callable[[jax.Array], jax.Array]
Initializer = nn.initializers.Initializer


def to_float(x: jax.Array) -> jax.Array:
    """Any observation as float32; uint8 is taken for a picture and scaled to [0, 1]."""
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x.astype(jnp.float32)


class Torso(nn.Module):
    """A pytree of arrays [N, ...] -> features [N, F].

    Every array is flattened, they are joined in tree order, and dense layers follow. With
    `conv_features`, arrays [N, H, W, C] first go through one 3x3 convolution (arXiv:1903.03176, sec. 3).

    Attributes:
      hidden_sizes: widths of the dense layers.
      activation: after every layer.
      kernel_init: initial weights of every layer.
      conv_features: channels of the convolution; 0 for none.
      conv_method: how to compute it.
    """

    hidden_sizes: tuple[int, ...]
    activation: Activation
    kernel_init: Initializer
    conv_features: int = 0
    conv_method: Method = "patches"

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        parts = []
        for index, leaf in enumerate(jax.tree.leaves(observation)):
            x = to_float(leaf)
            if self.conv_features and x.ndim == 4:
                conv = Conv(
                    self.conv_features,
                    method=self.conv_method,
                    kernel_init=self.kernel_init,
                    name=f"conv_{index}",
                )
                x = self.activation(conv(x))
            parts.append(x.reshape(x.shape[0], -1))
        x = jnp.concatenate(parts, axis=-1)
        for index, size in enumerate(self.hidden_sizes):
            x = self.activation(nn.Dense(size, kernel_init=self.kernel_init, name=f"dense_{index}")(x))
        return x
