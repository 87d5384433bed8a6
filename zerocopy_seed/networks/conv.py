"""A two-dimensional convolution whose gradients are fast on the CPU too."""

from __future__ import annotations

from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Method = Literal["plain", "lax"]

_LAYOUT = ("NHWC", "HWIO", "NHWC")


class ConvLayer(NamedTuple):
    """Output channels, rows and columns of the square kernel, steps between its positions."""

    features: int
    kernel_size: int
    stride: int


def smallest_picture(layers: tuple[ConvLayer, ...]) -> int:
    """Rows, and columns, that a picture must have for every layer to find a place for its kernel."""
    size = 1
    for layer in reversed(layers):
        size = (size - 1) * layer.stride + layer.kernel_size
    return size


def default_conv_method() -> Method:
    """Plain convolutions on the CPU, where XLA is up to 80 times slower at the others inside a loop."""
    return "plain" if jax.default_backend() == "cpu" else "lax"


class Conv(nn.Module):
    """[N, H, W, C] -> [N, H', W', features] in the input's dtype, the same by either method.

    Attributes:
      features: output channels, F.
      kernel_size: rows and columns of the kernel [kh, kw, C, F].
      strides: steps between its positions.
      padding: VALID or SAME, as XLA understands them.
      method: `plain` makes plain convolutions of the way there and back, `lax` leaves both to XLA.
    """

    features: int
    kernel_size: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: Literal["VALID", "SAME"] = "VALID"
    method: Method = "plain"
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
        if self.method == "plain":
            y = _plain_convolution(x, kernel, self.strides, self.padding)
        else:
            y = lax.conv_general_dilated(x, kernel, self.strides, self.padding, dimension_numbers=_LAYOUT)
        return y + bias.reshape(1, 1, 1, -1)


def _plain_convolution(x: Array, kernel: Array, strides: tuple[int, int], padding: str) -> Array:
    """A convolution as one with stride 1 and no padding, over blocks of `strides` pixels as channels."""
    pads = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    # Columns beyond the last position of the kernel are cut, and those that fill the last block added.
    fitting = [
        (low, (size + low + high - width) // stride * stride + -(-width // stride) * stride - size - low)
        for (low, high), size, width, stride in zip(
            pads, x.shape[1:3], kernel.shape[:2], strides, strict=True
        )
    ]
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((low, high, 0) for low, high in fitting), (0, 0, 0)))
    rest = [(0, -width % stride, 0) for width, stride in zip(kernel.shape[:2], strides, strict=True)]
    kernel = lax.pad(kernel, jnp.zeros((), kernel.dtype), (*rest, (0, 0, 0), (0, 0, 0)))
    if strides != (1, 1):
        x = _blocks_as_channels(x, strides)
        kernel = _blocks_as_channels(kernel.transpose(3, 0, 1, 2), strides).transpose(1, 2, 3, 0)
    return _convolve(x, kernel)


def _blocks_as_channels(x: Array, block: tuple[int, int]) -> Array:
    """[N, H, W, C] -> [N, H / rows, W / columns, rows * columns * C]."""
    n, h, w, c = x.shape
    rows, columns = block
    x = x.reshape(n, h // rows, rows, w // columns, columns, c).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h // rows, w // columns, -1)


@jax.custom_vjp
def _convolve(x: Array, kernel: Array) -> Array:
    """Stride 1, no padding: [N, H, W, C] and [kh, kw, C, F] -> [N, H - kh + 1, W - kw + 1, F]."""
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=_LAYOUT)


def _convolve_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(x, kernel), (x, kernel)


def _convolve_backward(stored: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, kernel = stored
    rows, columns = kernel.shape[0] - 1, kernel.shape[1] - 1
    around = jnp.pad(cotangent, ((0, 0), (rows, rows), (columns, columns), (0, 0)))
    # Barriers, since XLA would fold the transposed operands into a convolution of another layout, which on
    # CPU it computes one number at a time inside a loop.
    turned, pictures, patterns = lax.optimization_barrier(
        (
            jnp.flip(kernel, (0, 1)).transpose(0, 1, 3, 2),
            x.transpose(3, 1, 2, 0),
            cotangent.transpose(1, 2, 0, 3),
        )
    )
    x_gradient = _convolve(around, turned)
    kernel_gradient = lax.optimization_barrier(_convolve(pictures, patterns))
    return x_gradient, kernel_gradient.transpose(1, 2, 0, 3)


_convolve.defvjp(_convolve_forward, _convolve_backward)
