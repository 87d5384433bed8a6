"""Recurrent cores: the input's product for all steps at once, only the recurrent product in the scan."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

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

    def cell(self, kernel: jax.Array, carry: Any, projected: jax.Array) -> tuple[Any, jax.Array]:
        """One step: recurrent kernel [size, gates * size], carry, projected input [B, gates * size]."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x: jax.Array, first: jax.Array, carry: Any) -> tuple[jax.Array, Any]:
        width = self.num_gates * self.size
        projected = nn.Dense(width, kernel_init=self.kernel_init, bias_init=self.bias_init, name="input")(x)
        kernel = self.param("recurrent", _orthogonal_gates(self.num_gates), (self.size, width), jnp.float32)

        def step(carry, row):
            projected, first = row
            carry = jax.tree.map(lambda c: jnp.where(first[:, None], 0.0, c), carry)
            return self.cell(kernel, carry, projected)

        if x.shape[0] == 1:
            carry, output = step(carry, (projected[0], first[0]))
            return output[None], carry
        # Under shard_map a scan's carry must enter as varying as it leaves: let it depend on the inputs.
        nothing = 0.0 * lax.stop_gradient(projected[0, :, : self.size])
        carry = jax.tree.map(lambda c: jnp.where(first[0, :, None], nothing, c), carry)
        carry, outputs = lax.scan(step, carry, (projected, first))
        return outputs, carry


class LSTM(RecurrentCore):
    """Long short-term memory; the carry is (cell, hidden). Gates in the order input, forget, cell, output."""

    num_gates = 4

    def initial_carry(self, batch_size: int) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((batch_size, self.size)), jnp.zeros((batch_size, self.size))

    def bias_init(self, key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        # Open forget gates at the start, so that gradients reach back from the first update.
        return jnp.zeros(shape, dtype).at[self.size : 2 * self.size].set(1)

    def cell(self, kernel, carry, projected):
        cell, hidden = carry
        i, f, g, o = jnp.split(projected + hidden @ kernel, 4, axis=-1)
        cell = nn.sigmoid(f) * cell + nn.sigmoid(i) * nn.tanh(g)
        hidden = nn.sigmoid(o) * nn.tanh(cell)
        return (cell, hidden), hidden


class GRU(RecurrentCore):
    """Gated recurrent unit (arXiv:1406.1078), reset after the product; gates reset, update, new."""

    num_gates = 3

    def initial_carry(self, batch_size: int) -> jax.Array:
        return jnp.zeros((batch_size, self.size))

    def cell(self, kernel, carry, projected):
        x_r, x_z, x_n = jnp.split(projected, 3, axis=-1)
        h_r, h_z, h_n = jnp.split(carry @ kernel, 3, axis=-1)
        update = nn.sigmoid(x_z + h_z)
        new = nn.tanh(x_n + nn.sigmoid(x_r + h_r) * h_n)
        hidden = (1 - update) * new + update * carry
        return hidden, hidden


def _orthogonal_gates(num_gates: int) -> Initializer:
    orthogonal = nn.initializers.orthogonal()

    def init(key: jax.Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> jax.Array:
        size, width = shape
        gates = [orthogonal(k, (size, width // num_gates), dtype) for k in jax.random.split(key, num_gates)]
        return jnp.concatenate(gates, axis=-1)

    return init
