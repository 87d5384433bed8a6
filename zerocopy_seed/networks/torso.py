"""What turns an observation into a vector of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_seed.networks.conv import Conv, Method
from zerocopy_seed.networks.convolutions import Convolutions
from zerocopy_seed.networks.residual import ResidualSection

Activation = Callable[[jax.Array], jax.Array]
Initializer = nn.initializers.Initializer


def to_float(x: jax.Array) -> jax.Array:
    """Any observation as float32; uint8 is taken for a picture and scaled to [0, 1]."""
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def _standardize(x: jax.Array) -> jax.Array:
    """Mean 0 and standard deviation 1 of each [H, W, C]; one that is all alike becomes 0."""
    axes = (1, 2, 3)
    center = x - x.mean(axes, keepdims=True)
    return center * lax.rsqrt(jnp.square(center).mean(axes, keepdims=True) + 1e-6)


class Torso(nn.Module):
    """A pytree of arrays [N, ...] -> features [N, F].

    Every array is flattened, they are joined in tree order, and dense layers follow. Arrays [N, H, W, C]
    first go through the convolutions, if there are some, each array through its own.

    Attributes:
      hidden_sizes: widths of the dense layers.
      activation: after every layer.
      kernel_init: initial weights of every layer.
      convolutions: what pictures go through, or None.
      conv_method: how to compute them.
      standardize_pictures: give every picture (all stacked frames of it) mean 0 and standard deviation 1.
      compute_dtype: of every layer's operands; parameters and features are float32.
    """

    hidden_sizes: tuple[int, ...]
    activation: Activation
    kernel_init: Initializer
    convolutions: Convolutions | None = None
    conv_method: Method = "plain"
    standardize_pictures: bool = False
    compute_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        parts = []
        for index, leaf in enumerate(jax.tree.leaves(observation)):
            x = to_float(leaf)
            if self.convolutions is not None and x.ndim == 4:
                if self.standardize_pictures:
                    x = _standardize(x)
                x = self._convolve(self.convolutions, x.astype(self.compute_dtype), f"conv_{index}")
            parts.append(x.reshape(x.shape[0], -1).astype(self.compute_dtype))
        x = jnp.concatenate(parts, axis=-1)
        for index, size in enumerate(self.hidden_sizes):
            dense = nn.Dense(
                size, dtype=self.compute_dtype, kernel_init=self.kernel_init, name=f"dense_{index}"
            )
            x = self.activation(dense(x))
        return x.astype(jnp.float32)

    def _convolve(self, convolutions: Convolutions, x: jax.Array, name: str) -> jax.Array:
        for depth, layer in enumerate(convolutions.layers):
            conv = Conv(
                layer.features,
                (layer.kernel_size, layer.kernel_size),
                (layer.stride, layer.stride),
                method=self.conv_method,
                kernel_init=self.kernel_init,
                name=name if depth == 0 else f"{name}_{depth}",
            )
            x = self.activation(conv(x))
        for depth, features in enumerate(convolutions.sections):
            section = ResidualSection(
                features, self.activation, self.kernel_init, self.conv_method, name=f"{name}_section_{depth}"
            )
            x = section(x)
        return self.activation(x) if convolutions.sections else x
