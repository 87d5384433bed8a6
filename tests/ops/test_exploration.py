import json
import pathlib

import jax
import numpy as np
import pytest

from zerocopy_seed.ops.distributions import ILLEGAL_LOGIT
from zerocopy_seed.ops.exploration import deal_rungs, epsilon_greedy, epsilon_ladder

LADDERS = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "misc.json").read_text())[
    "epsilon_ladder"
]
greedy = jax.jit(epsilon_greedy)


@pytest.mark.parametrize("case", LADDERS, ids=[case["num_envs"] for case in LADDERS])
def test_the_ladder_s_reference_values(case):
    ladder = epsilon_ladder(case["num_envs"], case["base"], case["alpha"])
    assert ladder.dtype == np.float32
    np.testing.assert_allclose(ladder, case["expect"], rtol=1e-6)


def test_any_number_of_early_slots_spans_the_ladder():
    for num_slots in [*range(1, 70), 256]:
        rungs = deal_rungs(num_slots)
        assert rungs.dtype == np.int32
        np.testing.assert_array_equal(np.sort(rungs), np.arange(num_slots))
        for early in range(2, num_slots + 1):
            standing = np.sort(rungs[:early])
            assert (standing[0], standing[-1]) == (0, num_slots - 1)
            even = (num_slots - 1) / (early - 1)
            assert np.diff(standing).max() <= 1 + 2 * even, (num_slots, early)


def uniforms(seed=0, num=20_000):
    return np.random.default_rng(seed).random((num, 2), np.float32)


def rows(q, num=20_000):
    return np.tile(np.asarray(q, np.float32), (num, 1))


MASKED = [0.5, ILLEGAL_LOGIT, 2.0, 1.0, ILLEGAL_LOGIT]


def test_epsilon_0_is_greedy_and_1_is_uniform_over_the_legal():
    actions = greedy(rows(MASKED), np.float32(0), uniforms())
    assert actions.dtype == np.int32
    np.testing.assert_array_equal(actions, 2)
    shares = np.bincount(greedy(rows(MASKED), np.float32(1), uniforms()), minlength=5) / 20_000
    assert shares[[1, 4]].sum() == 0
    np.testing.assert_allclose(shares[[0, 2, 3]], 1 / 3, atol=0.015)


def test_every_slot_has_its_own_epsilon():
    epsilon = np.tile(np.array([0.1, 0.6], np.float32), 10_000)
    actions = np.asarray(greedy(rows(MASKED), epsilon, uniforms(1)))
    for slot, size in enumerate((0.1, 0.6)):
        shares = np.bincount(actions[slot::2], minlength=5) / 10_000
        expected = [size / 3, 0, 1 - size + size / 3, size / 3, 0]
        np.testing.assert_allclose(shares, expected, atol=0.02)


def test_the_ends_of_the_unit_interval_draw_legal_actions():
    below_one = np.float32(1) - np.float32(2**-24)
    ends = rows([[0.0, 0.0]], 10_000)
    ends[:, 1] = [0, below_one] * 5_000
    actions = np.asarray(greedy(rows(MASKED, 10_000), np.float32(1), ends))
    assert set(actions[::2]) == {0} and set(actions[1::2]) == {3}
    # Where nothing is legal, every action may be drawn.
    none = np.asarray(greedy(rows([ILLEGAL_LOGIT] * 5, 10_000), np.float32(1), ends))
    assert set(none[::2]) == {0} and set(none[1::2]) == {4}
