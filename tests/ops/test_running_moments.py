import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_seed.ops import counters
from zerocopy_seed.ops.running_moments import RunningMoments, add_rows, make_moments, mean_and_variance
from zerocopy_seed.ops.summation import CompensatedSum

ROWS, BATCH = 7, 5


@jax.jit
def add(moments, rows, valid):
    return add_rows(moments, rows, valid, axis_name=None)


def test_moments_are_those_of_all_valid_rows():
    rng = np.random.default_rng(0)
    moments = make_moments([(3,), ()])
    assert [float(x.max()) for pair in mean_and_variance(moments) for x in pair] == [0, 1, 0, 1]
    seen = [[], []]
    for share in (0.7, 0.0, 0.1, 1.0, 0.5, 0.3):  # of the rows, some batches none
        rows = [rng.normal(100, 5, (ROWS, BATCH, 3)), rng.normal(-1e3, 0.5, (ROWS, BATCH))]
        rows = [x.astype(np.float32) for x in rows]
        valid = rng.random((ROWS, BATCH)) < share
        for x, kept in zip(rows, seen, strict=True):
            kept.append(x[valid].astype(np.float64))
            x[~valid] = np.nan
        moments = add(moments, rows, valid)
    assert counters.as_int(moments.count) == len(np.concatenate(seen[0]))
    for (mean, variance), kept in zip(mean_and_variance(moments), seen, strict=True):
        rows = np.concatenate(kept)
        np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-6)
        np.testing.assert_allclose(variance, rows.var(0), rtol=1e-4)


def test_constant_rows_have_no_variance():
    moments = make_moments([()])
    for _ in range(20):
        moments = add(moments, [jnp.full((ROWS, BATCH), 0.1)], jnp.ones((ROWS, BATCH), bool))
    ((mean, variance),) = mean_and_variance(moments)
    np.testing.assert_allclose(mean, 0.1, rtol=1e-6)
    assert 0 <= variance < 1e-12


def test_rows_past_what_float32_counts_still_change_the_moments():
    # 2^33 rows of mean 0 and variance 1, then 2^19 of mean 3 and variance 0: each batch is 2^-28 of all.
    old, batches, added = 2.0**33, 2**14, 2.0**19
    zero = jnp.zeros(())
    moments = RunningMoments(
        counters.make_counter(2**33),
        (CompensatedSum(zero, zero),),
        (CompensatedSum(jnp.float32(old), zero),),
    )
    rows, valid = jnp.full((4, 8), 3.0), jnp.ones((4, 8), bool)

    @jax.jit
    def many(moments):
        return jax.lax.fori_loop(0, batches, lambda _, m: add_rows(m, [rows], valid, axis_name=None), moments)

    moments = many(moments)
    assert counters.as_int(moments.count) == old + added
    mean = 3 * added / (old + added)
    squares = old + 9 * old * added / (old + added)  # around the mean of all
    np.testing.assert_allclose(moments.mean[0].total, mean, rtol=1e-3)
    np.testing.assert_allclose(moments.squares[0].total - np.float32(old), squares - old, rtol=1e-3)
