"""A batch of unrolls taken in parts: several passes, shuffled minibatches, gradients piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_seed.ops.random import shard_keys
from zerocopy_seed.types import Array, Key, Trajectory


def select_unrolls(trajectory: Trajectory, columns: Array) -> Trajectory:
    """The unrolls at `columns` [n] int32 of a batch."""
    time_major = (trajectory.timestep, trajectory.action, trajectory.actor_output)
    timestep, action, actor_output = jax.tree.map(lambda leaf: leaf[:, columns], time_major)
    per_unroll = (trajectory.recurrent, trajectory.slot, trajectory.continues)
    recurrent, slot, continues = jax.tree.map(lambda leaf: leaf[columns], per_unroll)
    return Trajectory(timestep, action, actor_output, recurrent, slot, continues)


def scan_minibatches(
    update: Callable[[Any, Trajectory], tuple[Any, dict[str, Array]]],
    carry: Any,
    trajectory: Trajectory,
    key: Key,
    *,
    num_passes: int,
    num_minibatches: int,
    num_shards: int,
    axis_name: str | None,
) -> tuple[Any, dict[str, Array]]:
    """Calls `update(carry, minibatch)` num_passes * num_minibatches times.

    A minibatch takes an equal part of every shard, and each shard is shuffled by a key of its own, so that
    the minibatches do not depend on how many devices hold the shards.

    Args:
      update: (carry, Trajectory [T, b]) -> carry, metrics (scalars).
      carry: what the updates change.
      trajectory: this device's unrolls, [T, B].
      key: one key, the same on every device.
      num_passes: how often each unroll is used.
      num_minibatches: must divide the unrolls of a shard.
      num_shards: of all devices together.
      axis_name: mesh axis, or None.

    Returns:
      The last carry and the metrics' means over all updates.
    """
    if num_minibatches == 1 and num_passes == 1:
        return update(carry, trajectory)

    num_unrolls = trajectory.slot.shape[0]
    num_devices = 1 if axis_name is None else lax.axis_size(axis_name)
    local_shards = num_shards // num_devices
    per_shard = num_unrolls // local_shards

    def columns_of_pass(pass_key: Key) -> Array:
        keys = shard_keys(pass_key, local_shards, axis_name)
        order = jax.vmap(lambda shard_key: jax.random.permutation(shard_key, per_shard))(keys)
        columns = order + per_shard * jnp.arange(local_shards)[:, None]
        return columns.reshape(local_shards, num_minibatches, -1).swapaxes(0, 1).reshape(num_minibatches, -1)

    if num_minibatches == 1:

        def whole(carry, _):
            return update(carry, trajectory)

        carry, metrics = lax.scan(whole, carry, None, length=num_passes)
    else:
        columns = jax.vmap(columns_of_pass)(jax.random.split(key, num_passes))
        columns = columns.reshape(num_passes * num_minibatches, -1)

        def part(carry, columns):
            return update(carry, select_unrolls(trajectory, columns))

        carry, metrics = lax.scan(part, carry, columns)
    return carry, jax.tree.map(lambda rows: rows.mean(0), metrics)


def sum_gradients(
    gradients: Callable[[Any, Trajectory], tuple[Any, dict[str, Array]]],
    params: Any,
    batch: Trajectory,
    *,
    max_rows: int | None,
) -> tuple[Any, dict[str, Array]]:
    """`gradients(params, batch)` summed over pieces of the batch, which must be a sum over unrolls.

    Args:
      gradients: (params, Trajectory [T, b]) -> gradients, metrics (scalars), both sums over the unrolls.
      params: what the gradients are by.
      batch: [T, B].
      max_rows: most rows (unrolls times steps) in a piece, if an even split allows; None takes all at once.

    Returns:
      The gradients and the metrics of the whole batch.
    """
    num_steps, num_unrolls = batch.action.shape[:2]
    width = num_unrolls
    if max_rows is not None:
        fitting = [n for n in range(1, num_unrolls + 1) if num_unrolls % n == 0 and n * num_steps <= max_rows]
        width = max(fitting, default=1)
    if width == num_unrolls:
        return gradients(params, batch)

    def add_piece(total: Any, start: Array) -> tuple[Any, dict[str, Array]]:
        piece, metrics = gradients(params, select_unrolls(batch, start + jnp.arange(width)))
        return jax.tree.map(jnp.add, total, piece), metrics

    starts = jnp.arange(0, num_unrolls, width)
    total, metrics = lax.scan(add_piece, jax.tree.map(jnp.zeros_like, params), starts)
    return total, jax.tree.map(lambda rows: rows.sum(0), metrics)
