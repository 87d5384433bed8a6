import json
import pathlib

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from zerocopy_seed.replay import importance_weights

CASES = json.loads((pathlib.Path(__file__).parent.parent / "reference" / "misc.json").read_text())[
    "prioritised"
]


def probability_of(priority, exponent):
    priority = np.array(priority)
    mass = np.where(priority > 0, priority**exponent, 0.0)
    return (mass / mass.sum()).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_reference_values(case):
    np.testing.assert_allclose(
        probability_of(case["priority"], case["alpha"]), case["probability"], rtol=1e-6
    )
    weights = importance_weights(np.array(case["probability"], np.float32), case["beta"])
    np.testing.assert_allclose(weights, case["weight_over_max"], rtol=1e-6)


def test_three_priorities():
    weights = importance_weights(probability_of([1.0, 2.0, 5.0], 0.6), 0.4)
    np.testing.assert_allclose(weights, [1.0, 0.84675, 0.67959], atol=1e-5)


def test_nothing_drawn_and_extremes_are_finite():
    np.testing.assert_array_equal(importance_weights(np.zeros(3, np.float32), 0.6), 0.0)
    weights = importance_weights(np.array([2e-38, 1.0, 0.0], np.float32), 1.0)
    np.testing.assert_allclose(weights, [1.0, 2e-38, 0.0], rtol=1e-5)


def test_eight_devices_share_the_largest_weight():
    probability = np.random.default_rng(0).random(32).astype(np.float32)
    probability[[3, 4, 5, 6, 7]] = 0.0  # one device draws nothing
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    over_data = P("data")
    sharded = jax.jit(
        jax.shard_map(
            lambda x: importance_weights(x, 0.6, "data"), mesh=mesh, in_specs=over_data, out_specs=over_data
        )
    )
    np.testing.assert_allclose(sharded(probability), importance_weights(probability, 0.6), rtol=1e-6)
