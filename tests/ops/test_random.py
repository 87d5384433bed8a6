import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from zerocopy_seed.ops.random import next_uniforms, threefry2x32

KEYS = jax.random.split(jax.random.key(7, impl="threefry2x32"), 5)


def test_the_hash_is_jaxs():
    words = jax.random.key_data(KEYS)
    for block in (0, 1, 12345):
        ours = threefry2x32((words[:, 0], words[:, 1]), jnp.full(len(KEYS), block, jnp.uint32))
        for slot in range(len(KEYS)):
            expected = threefry_2x32(words[slot], jnp.array([0, block], jnp.uint32))
            np.testing.assert_array_equal([ours[0][slot], ours[1][slot]], expected)


def test_a_slot_draws_the_same_in_any_company():
    keys, uniforms = jax.jit(next_uniforms, static_argnums=1)(KEYS, 3)
    for slot in range(len(KEYS)):
        alone_key, alone = next_uniforms(KEYS[slot : slot + 1], 3)
        np.testing.assert_array_equal(alone[0], uniforms[slot])
        assert alone_key[0] == keys[slot]


def test_draws_are_uniform_and_independent():
    def body(keys, _):
        return next_uniforms(keys, 3)

    keys = jax.random.split(jax.random.key(1, impl="threefry2x32"), 50)
    _, draws = jax.lax.scan(body, keys, None, length=400)
    draws = np.asarray(draws).reshape(-1, 3)
    assert draws.min() >= 0 and draws.max() < 1
    np.testing.assert_allclose(draws.mean(0), 0.5, atol=0.01)
    np.testing.assert_allclose(draws.var(0), 1 / 12, atol=0.003)
    np.testing.assert_allclose(np.corrcoef(draws.T), np.eye(3), atol=0.03)
    assert len(np.unique(draws)) > 0.99 * draws.size
