"""The tree against float64 sums, and its draws against exact ones."""

import jax
import numpy as np

from zerocopy_seed.replay import sum_tree


def empty_tree(num_leaves, num_shards):
    shapes = jax.eval_shape(lambda: sum_tree.make_sum_tree(num_leaves, num_shards))
    return tuple(np.zeros(level.shape, level.dtype) for level in shapes)


def choose_exactly(masses, uniforms):
    """One shard's draws in float64, by the same numbers: masses [leaves], uniforms [n, depth] -> [n]."""
    place = np.zeros(len(uniforms), int)
    width = len(masses)
    for depth in range(uniforms.shape[1]):
        fanout = (
            width if depth == uniforms.shape[1] - 1 else -(-width // 32 ** (uniforms.shape[1] - 1 - depth))
        )
        width //= fanout
        sums = masses.reshape(-1, fanout, width).sum(-1)[place]
        cumulative = np.cumsum(sums, -1)
        below = cumulative[:, :-1] <= uniforms[:, depth, None] * cumulative[:, -1:]
        place = place * fanout + below.sum(-1)
    return place


def assert_likely(counts, expected):
    """Chi-square within five standard deviations of its mean."""
    degrees = counts.size - 1
    chi_square = np.sum((counts - expected) ** 2 / expected)
    assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)


def test_ten_thousand_updates_leave_no_drift_and_draws_are_exact():
    num_leaves, num_shards, num_updates, per_update = 1500, 2, 10_000, 8
    rng = np.random.default_rng(0)
    tree = empty_tree(num_leaves, num_shards)
    assert [level.shape for level in tree] == [(2, 2), (4, 32), (128, 32)]
    per_shard = sum_tree.leaves_per_shard(tree)
    # Leaves of either shard, each once in an update, and now and then one past the last.
    leaf = (rng.integers(0, num_leaves, (num_updates, 1)) + 11 * np.arange(per_update)) % num_leaves
    index = leaf + per_shard * rng.integers(0, num_shards, leaf.shape)
    index = np.where(rng.random(index.shape) < 0.1, tree[-1].size, index).astype(np.int32)
    mass = np.exp(rng.uniform(-14, 14, index.shape)).astype(np.float32)
    mass[rng.random(mass.shape) < 0.1] = 0.0
    mass[-400:] = rng.uniform(0.0, 2.0, mass[-400:].shape)  # small ones, after large ones were there
    mass[(leaf % 32 < 2) | (leaf % 32 > 29)] = 0.0

    @jax.jit
    def run(tree, index, mass, uniforms):
        tree, _ = jax.lax.scan(lambda tree, x: (sum_tree.set_masses(tree, *x), None), tree, (index, mass))
        drawn = sum_tree.sample(tree, uniforms)
        return tree, sum_tree.total_mass(tree), drawn, sum_tree.masses(tree, drawn)

    uniforms = rng.random((num_shards, 50_000, sum_tree.num_draws(tree)), np.float32)
    uniforms[:, -2:] = [[0.0], [1.0 - 2.0**-24]]  # the ends of the range never fall on a leaf without mass
    tree, total, drawn, drawn_mass = jax.tree.map(np.asarray, run(tree, index, mass, uniforms))

    exact = np.zeros(num_shards * per_shard + 1)
    for one_index, one_mass in zip(index, mass, strict=True):
        exact[one_index] = one_mass
    exact = exact[:-1].reshape(num_shards, per_shard)
    for level in tree:
        sums = exact.reshape(level.size, -1).sum(-1)
        np.testing.assert_allclose(level.reshape(-1), sums, rtol=2e-6)
        assert ((level.reshape(-1) == 0) == (sums == 0)).all()
    np.testing.assert_allclose(total, exact.sum(-1), rtol=2e-6)
    for shard in range(num_shards):
        found = drawn[shard] - shard * per_shard
        assert found.min() >= 0 and found.max() < num_leaves
        assert (exact[shard, found] > 0).all()
        np.testing.assert_array_equal(drawn_mass[shard], exact[shard, found].astype(np.float32))
        assert np.mean(found == choose_exactly(exact[shard], uniforms[shard])) > 0.9999
        # Frequencies, rare leaves taken together.
        found = found[:-2]
        expected = exact[shard] / exact[shard].sum() * found.size
        counts = np.bincount(found, minlength=per_shard)
        often = expected > 20
        assert_likely(
            np.append(counts[often], counts[~often].sum()), np.append(expected[often], expected[~often].sum())
        )


def test_a_million_leaves_of_very_different_masses():
    num_leaves, num_samples = 1_000_000, 200_000
    rng = np.random.default_rng(1)
    masses = np.full(num_leaves, 1e-3, np.float32)
    masses[::1000] = 0.0
    levels = list(empty_tree(num_leaves, 1))
    assert [level.shape for level in levels] == [(1, 31), (31, 32), (992, 32), (31744, 32)]
    levels[-1].reshape(-1)[:num_leaves] = masses
    for depth in (2, 1, 0):
        levels[depth][...] = levels[depth + 1].sum(-1).reshape(levels[depth].shape)
    large, large_mass = np.array([3, 500_000, 999_999]), np.array([1e1, 1e3, 1e4], np.float32)
    masses[large] = large_mass

    @jax.jit
    def run(tree, uniforms):
        # Where one comes twice its largest mass counts, in whatever order.
        mass = np.array([5.0, 1e3, 1e4, 1e1, 1.0], np.float32)
        tree = sum_tree.set_masses(tree, np.append(large, large[:2]), mass)
        drawn = sum_tree.sample(tree, uniforms)
        return drawn[0], sum_tree.masses(tree, drawn[0]), sum_tree.total_mass(tree)[0]

    uniforms = rng.random((1, num_samples, 4), np.float32)
    drawn, drawn_mass, total = jax.tree.map(np.asarray, run(tuple(levels), uniforms))
    exact = masses.astype(np.float64)
    np.testing.assert_allclose(total, exact.sum(), rtol=1e-6)
    assert (drawn_mass == masses[drawn]).all() and (drawn_mass > 0).all()
    # Each large one, and the small ones by tenths of the tree and by their place in a row of it.
    small = drawn[~np.isin(drawn, large)]
    exact[large] = 0.0
    for group in (np.arange(num_leaves) * 10 // num_leaves, np.arange(num_leaves) % 32):
        expected = np.append(large_mass, np.bincount(group, exact)) / (exact.sum() + large_mass.sum())
        counts = np.append((drawn[:, None] == large).sum(0), np.bincount(group[small]))
        assert_likely(counts, expected * num_samples)
