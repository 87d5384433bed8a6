"""Proportional sampling among many masses: a wide tree of sums, one tree per shard.

Every entry above the leaves is recomputed from its children, never adjusted by differences, so that no
rounding error builds up; and every level is descended by a draw of its own, since one draw's residue would
have lost its bits by the time it reached a leaf.
"""

from __future__ import annotations

import math

import jax.numpy as jnp

from zerocopy_seed.types import Array

_FANOUT = 32  # wide enough for four levels at a million leaves, narrow enough to add up in order

SumTree = tuple[Array, ...]
"""Levels from the top [num_shards, n] to the leaves [rows, _FANOUT]; entry i sums row i of the one below."""


def make_sum_tree(num_leaves: int, num_shards: int) -> SumTree:
    """A tree of zeros.

    Args:
      num_leaves: of one shard; more may be there, with no mass.
      num_shards: trees drawn from apart.
    """
    depth = 0
    while num_leaves > _FANOUT ** (depth + 1):
        depth += 1
    top = max(1, math.ceil(num_leaves / _FANOUT**depth))
    levels = [jnp.zeros((num_shards, top), jnp.float32)]
    for _ in range(depth):
        levels.append(jnp.zeros((levels[-1].size, _FANOUT), jnp.float32))
    return tuple(levels)


def leaves_per_shard(tree: SumTree) -> int:
    """Leaves of one shard: leaf i of shard s has index s * leaves_per_shard + i."""
    return tree[-1].size // tree[0].shape[0]


def num_draws(tree: SumTree) -> int:
    """Uniform numbers that one sample takes."""
    return len(tree)


def total_mass(tree: SumTree) -> Array:
    """Sum of each shard's masses, [num_shards] float32."""
    return tree[0].sum(-1)


def masses(tree: SumTree, index: Array) -> Array:
    """The masses of leaves `index` [...] int32."""
    return tree[-1].reshape(-1)[index]


def set_masses(tree: SumTree, index: Array, mass: Array) -> SumTree:
    """Replaces masses and the sums above them.

    Args:
      tree: what `make_sum_tree` made.
      index: [n] int32 leaves; one past the last is ignored. Where one comes twice, its largest mass counts.
      mass: [n] float32, not negative.
    """
    # Not set at once: where a leaf comes twice the order of a scatter is undefined.
    leaves = tree[-1].reshape(-1).at[index].set(0.0, mode="drop").at[index].max(mass, mode="drop")
    levels = [leaves.reshape(tree[-1].shape)]
    for level in reversed(tree[:-1]):
        index = index // levels[-1].shape[-1]
        mass = levels[-1].at[index].get(mode="clip").sum(-1)
        levels.append(level.reshape(-1).at[index].set(mass, mode="drop").reshape(level.shape))
    return tuple(reversed(levels))


def sample(tree: SumTree, uniforms: Array) -> Array:
    """Leaves drawn with probability mass / total of the shard.

    Leaves without mass are never drawn, but where a shard has no mass at all.

    Args:
      tree: with masses.
      uniforms: [num_shards, n, num_draws] float32 in [0, 1).

    Returns:
      [num_shards, n] int32.
    """
    num_shards, num_samples, _ = uniforms.shape
    row = jnp.broadcast_to(jnp.arange(num_shards, dtype=jnp.int32)[:, None], (num_shards, num_samples))
    for depth, level in enumerate(tree):
        row = row * level.shape[-1] + _choose(level[row], uniforms[..., depth])
    return row


def _choose(mass: Array, uniform: Array) -> Array:
    """A place along the last axis of [..., n], by inverse distribution function."""
    # Added in order, sums are monotone, so a place without mass is never chosen.
    sums = [mass[..., 0]]
    for place in range(1, mass.shape[-1]):
        sums.append(sums[-1] + mass[..., place])
    threshold = uniform * sums[-1]
    below = [(total <= threshold).astype(jnp.int32) for total in sums[:-1]]
    return sum(below, start=jnp.zeros(threshold.shape, jnp.int32))
