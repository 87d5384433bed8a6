"""The residual sections of IMPALA's large network (arXiv:1802.01561, fig. 3)."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_seed.networks.conv import Conv, Method

_NUM_BLOCKS = 2


class ResidualSection(nn.Module):
    """A convolution, a max pool that halves the picture, and two residual blocks, all with SAME padding.

    [N, H, W, C] -> [N, ceil(H / 2), ceil(W / 2), features]; every kernel is 3 x 3.

    Attributes:
      features: channels of all convolutions.
      activation: before every convolution but the first; the paper's is the rectifier.
      kernel_init: initial weights of every convolution.
      method: how to compute them.
    """

    features: int
    activation: Callable[[jax.Array], jax.Array]
    kernel_init: nn.initializers.Initializer
    method: Method = "plain"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = max_pool(self._conv("conv")(x))
        for block in range(_NUM_BLOCKS):
            inner = self._conv(f"block_{block}_conv_0")(self.activation(x))
            x = x + self._conv(f"block_{block}_conv_1")(self.activation(inner))
        return x

    def _conv(self, name: str) -> Conv:
        return Conv(
            self.features, padding="SAME", method=self.method, kernel_init=self.kernel_init, name=name
        )


def max_pool(x: jax.Array) -> jax.Array:
    """The maximum of 3 x 3 windows, 2 apart, padding SAME: [N, H, W, C] -> [N, ceil(H / 2), ceil(W / 2), C].

    By slices, rows before columns: on CPU the gradient of XLA's own reduction over windows is far slower.
    """
    for axis in (1, 2):
        size = x.shape[axis]
        # SAME adds one before an odd size only, and what is added is never the maximum.
        edges = [(0, 0, 0)] * 4
        edges[axis] = (size % 2, 1, 0)
        padded = lax.pad(x, jnp.array(-jnp.inf, x.dtype), edges)
        count = (size + 1) // 2
        first, second, third = (
            lax.slice_in_dim(padded, start, start + 2 * count - 1, 2, axis) for start in range(3)
        )
        x = jnp.maximum(jnp.maximum(first, second), third)
    return x
