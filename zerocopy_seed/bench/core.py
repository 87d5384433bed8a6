"""How close the LSTM comes, forward and backward, to the matrix products that it cannot do without."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_seed.bench.command import pin_to_one_core, print_json, require_no_choice
from zerocopy_seed.config import Config
from zerocopy_seed.networks.core import LSTM


def make_parts(size: int, unroll_length: int, batch_size: int) -> dict[str, Callable[[], Any]]:
    """The LSTM and the three products as calls that wait for their results.

    `lstm` is fed `size` features; it takes the gradients by its weights, its inputs and its first carry. The
    products are those of input and hidden state [T * B, 2 * size] with both kernels [2 * size, 4 * size]:
    forward, by the inputs and by the weights.
    """
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape, scale=scale), jnp.float32)

    core = LSTM(size, nn.initializers.lecun_normal())
    first = jnp.asarray(rng.random((unroll_length, batch_size)) < 0.02)
    x, weights = (normal(unroll_length, batch_size, size) for _ in range(2))
    carry = core.initial_carry(batch_size)
    shapes = jax.eval_shape(core.init, jax.random.key(0, impl="threefry2x32"), x, first, carry)
    variables = jax.tree.map(lambda leaf: normal(*leaf.shape, scale=size**-0.5), shapes)

    def loss(variables, x, carry):
        outputs, _ = core.apply(variables, x, first, carry)
        return jnp.sum(outputs * weights)

    rows = normal(unroll_length * batch_size, 2 * size)
    kernel = normal(2 * size, 4 * size)
    gates = normal(unroll_length * batch_size, 4 * size)
    parts: dict[str, tuple[Callable[..., Any], tuple]] = {
        "lstm": (jax.grad(loss, (0, 1, 2)), (variables, x, carry)),
        "forward_product": (lambda rows, kernel: rows @ kernel, (rows, kernel)),
        "inputs_product": (lambda gates, kernel: gates @ kernel.T, (gates, kernel)),
        "weights_product": (lambda rows, gates: rows.T @ gates, (rows, gates)),
    }

    def compiled(function: Callable[..., Any], arguments: tuple) -> Callable[[], Any]:
        program = jax.jit(function).lower(*arguments).compile()
        return lambda: jax.block_until_ready(program(*arguments))

    return {name: compiled(*part) for name, part in parts.items()}


def measure(
    *, size: int = 512, unroll_length: int = 125, batch_size: int = 64, rounds: int = 15
) -> dict[str, Any]:
    """Seconds of the LSTM and of each product, interleaved; the fastest of `rounds`."""
    parts = make_parts(size, unroll_length, batch_size)
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for call in parts.values():
        call()
    for _ in range(rounds):
        for name, call in parts.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    # What disturbs a timing only adds to it, so the fastest round is the nearest to the truth.
    fastest = {name: min(times) for name, times in seconds.items()}
    products = sum(fastest.values()) - fastest["lstm"]
    return {
        "size": size,
        "T": unroll_length,
        "B": batch_size,
        **{f"{name}_s": value for name, value in fastest.items()},
        "ratio_to_products": fastest["lstm"] / products,
    }


def run(configs: Sequence[Config] = (), *, num_envs: Sequence[int] = (), as_json: bool = False) -> None:
    """Measures on one core and prints the figures; JSON comes as one object on the last line.

    Args:
      configs: must be empty, since the shape is fixed.
      num_envs: likewise.
      as_json: print only the JSON object.

    Raises:
      UserError: for a configuration or numbers of environments.
    """
    require_no_choice("core", configs, num_envs)
    pin_to_one_core()
    result = measure()
    if as_json:
        print_json("core", result)
        return
    print(
        f"LSTM of {result['size']}, T={result['T']}, B={result['B']}: forward and backward "
        f"{1e3 * result['lstm_s']:.0f} ms, its products {1e3 * result['forward_product_s']:.0f}, "
        f"{1e3 * result['inputs_product_s']:.0f} and {1e3 * result['weights_product_s']:.0f} ms; "
        f"ratio to products {result['ratio_to_products']:.3f}"
    )
