"""Running means and variances of rows that come in batches, right however many there have been.

Batches are merged as Chan, Golub and LeVeque do (1979, "Updating formulae and a pairwise algorithm for
computing sample variances"): from sums of squares around each batch's own mean, so that no variance comes out
negative. Rows are counted in 64 bits and sums are compensated: plain float32 would take in nothing more after
some 2^24 rows.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from zerocopy_seed.ops import counters, summation
from zerocopy_seed.ops.collectives import sum_over_devices
from zerocopy_seed.ops.summation import CompensatedSum
from zerocopy_seed.types import Array, Counter


class RunningMoments(NamedTuple):
    """Of rows, each a pytree of arrays [...].

    Attributes:
      count: `Counter` of rows.
      mean: a `CompensatedSum` [...] for each array, in tree order.
      squares: likewise, sums of squared differences from the mean.
    """

    count: Counter
    mean: tuple[CompensatedSum, ...]
    squares: tuple[CompensatedSum, ...]


def make_moments(shapes: list[tuple[int, ...]]) -> RunningMoments:
    """Of no rows, of arrays of these shapes."""
    zeros = tuple(summation.make_sum(shape) for shape in shapes)
    return RunningMoments(counters.make_counter(), zeros, zeros)


def add_rows(
    moments: RunningMoments, rows: list[Array], valid: Array, *, axis_name: str | None
) -> RunningMoments:
    """With more rows, those of all devices; without them where their sums or squares overflow.

    Args:
      moments: the same on every device.
      rows: [T, B, ...] float32 for each array, this device's.
      valid: [T, B] bool, which of them count; the others may hold anything.
      axis_name: mesh axis over which B is spread, inside `shard_map`; None for one device.
    """
    valid_count = sum_over_devices(valid.sum(dtype=jnp.int32), axis_name)
    num_new, num_old = valid_count.astype(jnp.float32), counters.as_float(moments.count)
    # What the new rows weigh among all; 0 / 0 of none is none.
    share = num_new / jnp.maximum(num_old + num_new, 1.0)

    def sum_rows(x: Array) -> Array:
        counted = valid.reshape(valid.shape + (1,) * (x.ndim - valid.ndim))
        return sum_over_devices(jnp.where(counted, x, 0.0).sum((0, 1)), axis_name)

    means, squares = [], []
    for x, mean, square in zip(rows, moments.mean, moments.squares, strict=True):
        x = x.astype(jnp.float32)
        # Differences from the mean so far are small numbers, which lose less when summed than the rows would.
        new_mean = sum_rows(x - mean.total[None, None]) / jnp.maximum(num_new, 1.0)
        new_squares = sum_rows(jnp.square(x - mean.total[None, None] - new_mean[None, None]))
        means.append(summation.add(mean, new_mean * share))
        squares.append(summation.add(square, new_squares + jnp.square(new_mean) * (num_old * share)))
    added = RunningMoments(counters.increment(moments.count, valid_count), tuple(means), tuple(squares))
    sums = [total for total, _ in (*means, *squares)]
    is_finite = jnp.stack([jnp.isfinite(total).all() for total in sums]).all()
    return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), added, moments)


def mean_and_variance(moments: RunningMoments) -> list[tuple[Array, Array]]:
    """The mean and the variance of each array; 0 and 1 of no rows."""
    count = counters.as_float(moments.count)
    return [
        (mean.total, jnp.where(count > 0, squares.total / jnp.maximum(count, 1.0), 1.0))
        for mean, squares in zip(moments.mean, moments.squares, strict=True)
    ]
