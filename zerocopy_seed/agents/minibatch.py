"""Several passes over a batch of unrolls, each in shuffled minibatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_seed.ops.collectives import device_index
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
        first_shard = device_index(axis_name) * local_shards
        shard_keys = jax.vmap(lambda shard: jax.random.fold_in(pass_key, shard))(
            first_shard + jnp.arange(local_shards)
        )
        order = jax.vmap(lambda shard_key: jax.random.permutation(shard_key, per_shard))(shard_keys)
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
