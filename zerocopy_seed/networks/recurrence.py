"""A recurrent core along time, its weights' gradient one matrix product after the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Advance = Callable[[Any, Array], Any]  # carry [B, ...], gates' inputs [B, W] -> carry
Spread = Callable[[Array], Array]  # [B, columns of the kernel] -> [B, W], linear


def advance_once(
    advance: Advance, spread: Spread, kernel: Array, bias: Array, inputs: Array, first: Array, carry: Any
) -> tuple[Array, Any]:
    """One step of `recurrence`: inputs [B, W], first [B], carry [B, ...] -> output [B, H], carry."""
    entering = _reset(carry, first)
    carry = advance(entering, inputs + bias[None] + spread(_hidden(entering) @ kernel))
    return _hidden(carry), carry


def recurrence(
    advance: Advance, spread: Spread, kernel: Array, bias: Array, inputs: Array, first: Array, carry: Any
) -> tuple[Array, Any]:
    """A recurrent core over T steps: carry = advance(carry, inputs[t] + bias + spread(hidden @ kernel)).

    Differentiated as it stands, such a scan adds the weights' gradient up step by step, reading and writing a
    matrix as large as the kernel every time. Here the way back only finds the gradients of the gates' inputs,
    over which the weights' gradient is then one product. They are the most of what is stored, so each of the
    three, inputs, gates' inputs and their gradients, takes the place of the one before it.

    Args:
      advance: the gates; the last leaf of the carry that it returns is the hidden state, [B, H].
      spread: brings a product into the order of the gates' inputs.
      kernel: [H, columns] recurrent weights.
      bias: [W], here since adding it to all inputs at once would cost a pass over them.
      inputs: [T, B, W] the inputs' share of the gates' inputs, in their order.
      first: [T, B] bool; the carry is zeros where True.
      carry: [B, ...] entering the first step.

    Returns:
      Hidden states [T, B, H], and the carry after the last step.
    """

    @jax.custom_vjp
    def run(kernel, bias, inputs, first, carry):
        def step(carry, row):
            row, first = row
            output, carry = advance_once(advance, spread, kernel, bias, row, first, carry)
            return carry, output

        carry, hidden = lax.scan(step, carry, (inputs, first))
        return hidden, carry

    def forward(kernel, bias, inputs, first, carry):
        def step(carry, row, first):
            entering = _reset(carry, first)
            gates = row + bias[None] + spread(_hidden(entering) @ kernel)
            carry = advance(entering, gates)
            return carry, gates, (entering, _hidden(carry))

        last, gates, (entering, hidden) = _scan_replacing(step, carry, inputs, first)
        return (hidden, last), (kernel, first, entering, gates)

    def backward(stored, cotangents):
        kernel, first, entering, gates = stored
        # Linear, so that the product is only there for its type.
        _, gather = jax.vjp(spread, _hidden(entering)[0] @ kernel)

        def step(carry, row, others):
            hidden, first, entering = others
            _, pullback = jax.vjp(advance, entering, row)
            carry, row = pullback(_add_to_hidden(carry, hidden))
            (product,) = gather(row)
            carry = _add_to_hidden(carry, product @ kernel.T)
            return _reset(carry, first), row, ()

        hidden, last = cotangents
        carry, gates, _ = _scan_replacing(step, last, gates, (hidden, first, entering), reverse=True)
        (products,) = jax.vmap(gather)(gates)
        hidden = _hidden(entering).reshape(-1, kernel.shape[0])
        return hidden.T @ products.reshape(-1, kernel.shape[1]), gates.sum((0, 1)), gates, None, carry

    run.defvjp(forward, backward)
    kernel, bias, inputs, carry = _equally_varying((kernel, bias, inputs, carry))
    return run(kernel, bias, inputs, first, carry)


def _scan_replacing(step, carry, rows: Array, others: Any, *, reverse: bool = False):
    """`lax.scan` that puts what a step makes of its row into the row's place.

    Args:
      step: carry, row, row of `others` -> carry, new row, what else to stack.
      carry: before the first step.
      rows: [T, ...].
      others: a pytree [T, ...], only read.
      reverse: from the last row to the first.

    Returns:
      Carry, new rows [T, ...], and what else was stacked.
    """
    num_rows = rows.shape[0]

    def at(tree, t):
        return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t, keepdims=False), tree)

    # A row comes in the carry: XLA on CPU moves a slice into each of its readers and vectorises none of them.
    def body(state, t):
        carry, rows, row = state
        carry, row, extra = step(carry, *row)
        rows = lax.dynamic_update_index_in_dim(rows, row, t, 0)
        following = jnp.maximum(t - 1, 0) if reverse else jnp.minimum(t + 1, num_rows - 1)
        return (carry, rows, at((rows, others), following)), extra

    start = num_rows - 1 if reverse else 0
    state = (carry, rows, at((rows, others), start))
    (carry, rows, _), extra = lax.scan(body, state, jnp.arange(num_rows), reverse=reverse)
    return carry, rows, extra


def _hidden(carry: Any) -> Array:
    return jax.tree.leaves(carry)[-1]


def _add_to_hidden(carry: Any, addend: Array) -> Any:
    *leaves, hidden = jax.tree.leaves(carry)
    return jax.tree.unflatten(jax.tree.structure(carry), [*leaves, hidden + addend])


def _reset(carry: Any, first: Array) -> Any:
    return jax.tree.map(lambda c: jnp.where(first[:, None], 0.0, c), carry)


def _equally_varying(tree: Any) -> Any:
    """Arrays that under shard_map all vary over devices where one does, as a scan asks of its carry."""
    corners = [leaf[(0,) * leaf.ndim] for leaf in jax.tree.leaves(tree)]
    # By use: what an array varies over has another name in every version of JAX. XLA makes nothing of it.
    nothing = jnp.where(lax.stop_gradient(sum(corners)) > 0, 0.0, 0.0)
    return jax.tree.map(lambda leaf: leaf + nothing, tree)
