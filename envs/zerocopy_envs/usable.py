"""Timesteps that cannot be used, and what stands in for them. Imports no JAX: `xp` is numpy or `jax.numpy`.

One number that is NaN or infinite makes NaN of all that is computed from it, also of what is masked later:
0 times NaN is NaN. So a timestep that has such numbers never reaches a network. What stands in for it is a
FIRST whose discount is 0, which no environment returns: as at any FIRST the transition into it does not count
and recurrent state is forgotten. The next timestep must be a FIRST too, so that nothing is learned from the
stand-in's own row.
"""

from __future__ import annotations

import math
from typing import Any

from zerocopy_envs.trees import leaves, map_leaves
from zerocopy_envs.types import Array, StepType, TimeStep

LIMIT = 2.0**64
"""Numbers from here on are as good as infinite: float32 cannot hold their squares."""


def usable(timestep: TimeStep, xp: Any) -> Array:
    """[B] bool: the reward of a timestep [B] and all floats of its observation are below `LIMIT`."""
    found = fits(timestep.reward, xp)
    for leaf in leaves(timestep.observation):
        if xp.issubdtype(leaf.dtype, xp.floating):
            found &= _fits(_largest(xp.abs(leaf).reshape(len(leaf), -1), xp), xp)
    return found


def stand_in(timestep: TimeStep, is_usable: Array, xp: Any) -> TimeStep:
    """A timestep [B] with a stand-in where it is not usable; floats of its observation are 0 there."""

    def replaced(leaf: Array) -> Array:
        if not xp.issubdtype(leaf.dtype, xp.floating):
            return leaf
        # By rows: to look at every number once more would take as long as the rest of a small step.
        rows = is_usable.reshape(len(leaf), *[1] * (leaf.ndim - 1))
        return xp.where(rows, leaf, xp.zeros((), leaf.dtype))

    first = xp.asarray(StepType.FIRST, timestep.step_type.dtype)
    zero = xp.zeros((), timestep.reward.dtype)
    is_first = timestep.step_type == first
    return TimeStep(
        xp.where(is_usable, timestep.step_type, first),
        xp.where(is_usable, timestep.reward, zero),
        # Never 0 at a true FIRST, whatever an actor says.
        xp.where(is_usable, xp.where(is_first, zero + 1, timestep.discount), zero),
        map_leaves(replaced, timestep.observation),
    )


def is_stand_in(timestep: TimeStep) -> Array:
    """Where a timestep [...] is what `stand_in` made: [...] bool."""
    return (timestep.step_type == StepType.FIRST) & (timestep.discount == 0)


def fits(numbers: Array, xp: Any) -> Array:
    """Where numbers [...] are below `LIMIT`: bool [...]."""
    return _fits(xp.abs(numbers), xp)


def _fits(sizes: Array, xp: Any) -> Array:
    limit = LIMIT if float(xp.finfo(sizes.dtype).max) > LIMIT else math.inf
    return sizes < limit  # False of NaN


def _largest(sizes: Array, xp: Any) -> Array:
    """The largest of each row [B, n], NaN if one is; by halves: XLA vectorises no reduction."""
    while (width := sizes.shape[1]) > 16:
        half = (width + 1) // 2  # of an odd number both have the one in the middle
        sizes = xp.maximum(sizes[:, :half], sizes[:, width - half :])
    return sizes.max(1, initial=0)
