import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_seed.ops import counters, summation


@pytest.mark.parametrize("start", [0, 2**24 - 1, 2**31 - 1, 2**32 - 1, 2**40 + 5])
def test_counts_past_every_border(start):
    counter = counters.make_counter(start)
    for amount in (1, 8192, 2**31 - 1):
        counter = jax.jit(counters.increment)(counter, jnp.int32(amount))
        start += amount
        assert counters.as_int(counter) == start
    np.testing.assert_allclose(counters.as_float(counter), start, rtol=1e-6)


def test_sums_past_2_to_the_24():
    def body(_, sums):
        return jax.tree.map(lambda x: x, summation.add(sums, jnp.float32(1.0)))

    start = summation.make_sum()._replace(total=jnp.float32(2**24))
    result = jax.jit(lambda s: jax.lax.fori_loop(0, 1000, body, s))(start)
    assert float(result.total) - float(result.error) == 2**24 + 1000
    plain = jax.lax.fori_loop(0, 1000, lambda _, x: x + 1, jnp.float32(2**24))
    assert float(plain) == 2**24
