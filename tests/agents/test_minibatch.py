from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs.types import TimeStep
from zerocopy_seed.agents.minibatch import scan_minibatches, select_unrolls, sum_gradients
from zerocopy_seed.types import Trajectory

T, B = 3, 12


def batch():
    """A trajectory in which every unroll can be told apart by its slot."""
    slot = jnp.arange(B, dtype=jnp.int32)
    rows = jnp.broadcast_to(slot.astype(jnp.float32), (T + 1, B))
    timestep = TimeStep(jnp.ones((T + 1, B), jnp.int8), rows, jnp.ones((T + 1, B)), rows[..., None])
    recurrent: Any = rows[0]
    return Trajectory(timestep, rows[:T], rows[:T], recurrent, slot, slot >= 0)


def test_selected_unrolls_are_whole():
    chosen = select_unrolls(batch(), jnp.array([5, 2]))
    for leaf in jax.tree.leaves((chosen.timestep.observation[..., 0], chosen.action, chosen.actor_output)):
        np.testing.assert_array_equal(leaf, np.broadcast_to([5.0, 2.0], leaf.shape))
    np.testing.assert_array_equal(chosen.slot, [5, 2])
    np.testing.assert_array_equal(chosen.recurrent, [5.0, 2.0])


@pytest.mark.parametrize("max_rows, pieces", [(None, 1), (36, 1), (35, 2), (12, 3), (7, 6), (1, 12)])
def test_gradients_in_pieces_are_the_gradients(max_rows, pieces):
    widths = []

    def gradients(params, piece):
        widths.append(piece.slot.shape[0])
        grad = jax.grad(lambda p: (p * jnp.square(piece.action)).sum())(params)
        return grad, {"rows": jnp.float32(piece.action.size)}

    total, metrics = sum_gradients(gradients, jnp.float32(2.0), batch(), max_rows=max_rows)
    assert total == T * np.square(np.arange(B)).sum() and metrics["rows"] == T * B
    assert set(widths) == {B // pieces}


@pytest.mark.parametrize("num_shards", [1, 3])
def test_every_pass_uses_every_unroll_once_and_every_shard_equally(num_shards):
    def update(seen, minibatch):
        shards = minibatch.slot // (B // num_shards)
        return seen.at[minibatch.slot].add(1), {
            "most_of_a_shard": jnp.bincount(shards, length=num_shards).max().astype(jnp.float32),
            "first": minibatch.slot[0].astype(jnp.float32),
        }

    seen, metrics = scan_minibatches(
        update,
        jnp.zeros(B, jnp.int32),
        batch(),
        jax.random.key(0, impl="threefry2x32"),
        num_passes=3,
        num_minibatches=2,
        num_shards=num_shards,
        axis_name=None,
    )
    np.testing.assert_array_equal(seen, 3)
    assert metrics["most_of_a_shard"] == B / 2 / num_shards
    assert metrics["first"] != 0  # shuffled
