"""Recurrent cores: the input's product for all steps at once, only the recurrent product step by step."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from zerocopy_seed.networks.dense import matrix_product
from zerocopy_seed.networks.recurrence import advance_once, recurrence

Initializer = nn.initializers.Initializer


class RecurrentCore(nn.Module):
    """Base of the cores: features [T, B, F] -> [T, B, size]; the carry [B, ...] is zeros at a FIRST.

    Attributes:
      size: width.
      kernel_init: initial weights of the input's projection; the recurrent ones are orthogonal, gate by gate.
    """

    size: int
    kernel_init: Initializer

    num_gates = 0  # blocks of columns in both kernels

    def initial_carry(self, batch_size: int) -> Any:
        raise NotImplementedError

    def bias_init(self, key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jnp.zeros(shape, dtype)

    def spread_input(self, projected: jax.Array) -> jax.Array:
        """The input's product or bias [..., gates * size] in the order of the gates' inputs [..., W]."""
        return projected

    def spread_product(self, product: jax.Array) -> jax.Array:
        """The recurrent product [..., gates * size] likewise."""
        return product

    def advance(self, carry: Any, gates: jax.Array) -> Any:
        """One step: carry [B, ...] and the sum of both [B, W] -> carry, whose last leaf is the output."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x: jax.Array, first: jax.Array, carry: Any) -> tuple[jax.Array, Any]:
        width = self.num_gates * self.size
        product, bias = _Projection(width, self.kernel_init, self.bias_init, name="input")(x)
        kernel = self.param("recurrent", _orthogonal_gates(self.num_gates), (self.size, width), jnp.float32)
        cell = self.advance, self.spread_product, kernel, self.spread_input(bias)
        inputs = self.spread_input(product)
        if x.shape[0] == 1:
            output, carry = advance_once(*cell, inputs[0], first[0], carry)
            return output[None], carry
        return recurrence(*cell, inputs, first, carry)


class _Projection(nn.Module):
    """A dense layer that returns its product and its bias, not yet added: [T, B, F] -> [T, B, features]."""

    features: int
    kernel_init: Initializer
    bias_init: Initializer

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        return matrix_product(x, kernel), bias


class LSTM(RecurrentCore):
    """Long short-term memory; the carry is (cell, hidden). Gates in the order input, forget, cell, output."""

    num_gates = 4

    def initial_carry(self, batch_size: int) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((batch_size, self.size)), jnp.zeros((batch_size, self.size))

    def bias_init(self, key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        # Open forget gates at the start, so that gradients reach back from the first update.
        return jnp.zeros(shape, dtype).at[self.size : 2 * self.size].set(1)

    def advance(self, carry, gates):
        cell, _ = carry
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        cell = nn.sigmoid(f) * cell + nn.sigmoid(i) * nn.tanh(g)
        return cell, nn.sigmoid(o) * nn.tanh(cell)


class GRU(RecurrentCore):
    """Gated recurrent unit (arXiv:1406.1078), reset after the product; gates reset, update, new."""

    num_gates = 3

    def initial_carry(self, batch_size: int) -> jax.Array:
        return jnp.zeros((batch_size, self.size))

    # The reset gate multiplies the product alone, so the new gate's two inputs are kept apart.
    def spread_input(self, projected):
        return jnp.concatenate([projected, jnp.zeros_like(projected[..., : self.size])], axis=-1)

    def spread_product(self, product):
        r, z, n = jnp.split(product, 3, axis=-1)
        return jnp.concatenate([r, z, jnp.zeros_like(n), n], axis=-1)

    def advance(self, carry, gates):
        r, z, x_n, h_n = jnp.split(gates, 4, axis=-1)
        update = nn.sigmoid(z)
        new = nn.tanh(x_n + nn.sigmoid(r) * h_n)
        return (1 - update) * new + update * carry


def _orthogonal_gates(num_gates: int) -> Initializer:
    orthogonal = nn.initializers.orthogonal()

    def init(key: jax.Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> jax.Array:
        size, width = shape
        gates = [orthogonal(k, (size, width // num_gates), dtype) for k in jax.random.split(key, num_gates)]
        return jnp.concatenate(gates, axis=-1)

    return init
