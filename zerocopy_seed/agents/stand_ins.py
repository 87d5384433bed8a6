"""Counting the rows of a batch that stand in for timesteps that could not be used."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from zerocopy_envs.usable import is_stand_in
from zerocopy_seed.ops.collectives import sum_over_devices
from zerocopy_seed.types import Array, Trajectory


def count_stand_ins(trajectory: Trajectory, axis_name: str | None) -> Array:
    """Rows of all devices' unrolls, after the first, that are stand-ins; a float32 scalar.

    Args:
      trajectory: [T+1, B] timesteps; row 0 was counted as the last one of the unroll before. The discount of
        padding is 1.
      axis_name: mesh axis over which slots are spread, inside `shard_map`; None for one device.
    """
    arrived = jax.tree.map(lambda x: x[1:], trajectory.timestep._replace(observation=()))
    return sum_over_devices(is_stand_in(arrived).sum(dtype=jnp.float32), axis_name)
