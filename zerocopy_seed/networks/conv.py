"""A two-dimensional convolution, computed in the way that suits the backend."""

from __future__ import annotations

from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Method = Literal["patches", "lax"]


class ConvLayer(NamedTuple):
    """Output channels, rows and columns of the square kernel, steps between its positions."""

    features: int
    kernel_size: int
    stride: int


MINATAR_CONV = (ConvLayer(16, 3, 1),)
"""arXiv:1903.03176, sec. 3."""

NATURE_CONV = (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1))
"""Mnih et al. 2015, doi:10.1038/nature14236, methods."""


def smallest_picture(layers: tuple[ConvLayer, ...]) -> int:
    """Rows, and columns, that a picture must have for every layer to find a place for its kernel."""
    size = 1
    for layer in reversed(layers):
        size = (size - 1) * layer.stride + layer.kernel_size
    return size


def default_conv_method() -> Method:
    """Patches times a matrix on CPU, where XLA's backward pass of a convolution is several times slower."""
    return "patches" if jax.default_backend() == "cpu" else "lax"


class Conv(nn.Module):
    """[N, H, W, C] -> [N, H', W', features], parameters and results independent of `method`.

    Attributes:
      features: output channels, F.
      kernel_size: rows and columns of the kernel [kh, kw, C, F].
      strides: steps between its positions.
      padding: VALID or SAME, as XLA understands them.
      method: `patches` multiplies gathered patches by a matrix, `lax` leaves it to XLA's convolution.
    """

    features: int
    kernel_size: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: Literal["VALID", "SAME"] = "VALID"
    method: Method = "patches"
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        if self.method == "patches":
            patches = _patches(x, self.kernel_size, self.strides, self.padding)
            y = patches @ kernel.reshape(-1, self.features)
        else:
            layout = ("NHWC", "HWIO", "NHWC")
            y = lax.conv_general_dilated(x, kernel, self.strides, self.padding, dimension_numbers=layout)
        return y + bias.reshape(1, 1, 1, -1)


def _patches(x: jax.Array, kernel_size: tuple[int, int], strides: tuple[int, int], padding: str) -> jax.Array:
    """[N, H, W, C] -> [N, H', W', kh * kw * C], in the order of a kernel [kh, kw, C, F] made flat."""
    pads = lax.padtype_to_pads(x.shape[1:3], kernel_size, strides, padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    rows, columns = (
        (size - kernel) // stride + 1
        for size, kernel, stride in zip(x.shape[1:3], kernel_size, strides, strict=True)
    )
    shifted = [
        x[
            :,
            i : i + (rows - 1) * strides[0] + 1 : strides[0],
            j : j + (columns - 1) * strides[1] + 1 : strides[1],
        ]
        for i in range(kernel_size[0])
        for j in range(kernel_size[1])
    ]
    return jnp.concatenate(shifted, axis=-1)
