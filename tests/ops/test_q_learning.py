import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_seed.ops.q_learning import (
    n_step_double_q,
    sequence_priority,
    value_rescale,
    value_rescale_inverse,
)

REFERENCE = pathlib.Path(__file__).parents[1] / "reference"
CASES = json.loads((REFERENCE / "r2d2.json").read_text())
RESCALED = json.loads((REFERENCE / "misc.json").read_text())["value_rescale"]
FIRST, MID, LAST = 0, 1, 2


def in_one_program(arguments, *, n_step, rescale, double=True, eta=0.9, shape=(25, 7, 6)):
    """Targets, errors, priorities of a case padded to `shape` [T+1, B, A]: compiled once a setting.

    A row after the last one that is FIRST ends the sum as row T does, and no action of -1e30 is preferred.
    """
    steps, columns = arguments["rewards"].shape
    num_actions = arguments["q_online"].shape[-1]
    rows = {"rewards": 3.0, "discounts": 1.0, "actions": 0, "valid": False}
    after = shape[0] - 1 - steps, shape[1] - columns
    padded = {
        name: np.pad(arguments[name], ((0, after[0]), (0, after[1])), constant_values=rows[name])
        for name in rows
    }
    for name in ("q_online", "q_target"):
        widths = ((0, after[0]), (0, after[1]), (0, shape[2] - num_actions))
        padded[name] = np.pad(arguments[name], widths, constant_values=-1e30)
    result, priority = COMPILED(padded, eta, n_step=n_step, rescale=rescale, double=double)
    for array in (result.targets, result.td_errors):
        np.testing.assert_array_equal(array[steps:], 0)
    return (
        np.asarray(result.targets)[:steps, :columns],
        np.asarray(result.td_errors)[:steps, :columns],
        np.asarray(priority)[:columns],
    )


def _both(arguments, eta, **settings):
    result = n_step_double_q(**arguments, **settings)
    return result, sequence_priority(result.td_errors, arguments["valid"], eta=eta)


COMPILED = jax.jit(_both, static_argnames=("n_step", "rescale", "double"))


def h(x):
    return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x


def h_inverse(x):
    return np.sign(x) * (((np.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1)


def walked_targets(case, *, n_step, rescale, double):
    """The definition in float64: from every row walk on until n rewards, an episode's end or the last row."""
    q_online, q_target = (np.asarray(case[name], np.float64) for name in ("q_online", "q_target"))
    rewards, discounts, valid = (case[name] for name in ("rewards", "discounts", "valid"))
    targets = np.zeros(rewards.shape)
    for start, b in zip(*np.nonzero(valid), strict=True):
        total, weight, t = 0.0, 1.0, start
        while True:
            total += weight * rewards[t, b]
            weight *= discounts[t, b]
            t += 1
            if t - start == n_step or t == len(rewards) or not valid[t, b]:
                break
        best = np.argmax((q_online if double else q_target)[t, b])
        value = q_target[t, b, best]
        total += weight * (h_inverse(value) if rescale else value)
        targets[start, b] = h(total) if rescale else total
    return targets


def random_case(seed):
    """Episodes that end everywhere, some lost without a LAST; one column is never valid."""
    rng = np.random.default_rng(seed)
    steps, columns, num_actions = rng.integers(1, 25), rng.integers(1, 8), rng.integers(1, 7)
    share = (0.2, 0.0, 0.6)[seed % 3]
    first = rng.random((steps + 1, columns)) < share
    first[:, -1] |= columns > 1
    ended = np.concatenate([first[1:], rng.random((1, columns)) < 0.5])  # after a row: LAST, or lost
    terminated = ended & (rng.random(first.shape) < 0.5)
    return {
        "q_online": rng.normal(size=(steps + 1, columns, num_actions), scale=5).astype(np.float32),
        "q_target": rng.normal(size=(steps + 1, columns, num_actions), scale=5).astype(np.float32),
        "actions": rng.integers(0, num_actions, (steps, columns), np.int32),
        "rewards": rng.normal(size=(steps, columns), scale=3).astype(np.float32),
        "discounts": np.where(terminated[1:], 0, 0.9).astype(np.float32),
        "valid": ~first[1:],
    }


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_reference_values(case):
    step_type, expected = np.array(case["step_type"]), case["expect"]
    arguments = {
        "q_online": np.array(case["q_online"], np.float32),
        "q_target": np.array(case["q_target"], np.float32),
        "actions": np.array(case["action"], np.int32)[:-1],
        "rewards": np.array(case["reward"], np.float32)[1:],
        "discounts": np.float32(case["gamma"]) * np.array(case["discount"], np.float32)[1:],
        "valid": step_type[1:] != FIRST,
    }
    np.testing.assert_array_equal(arguments["valid"], np.array(expected["mask"], bool))
    targets, td_errors, priority = in_one_program(
        arguments, n_step=case["n_step"], rescale=case["value_rescale"], eta=case["eta"]
    )
    scale = np.abs(expected["target"]).max()
    np.testing.assert_allclose(targets, expected["target"], rtol=2e-5, atol=2e-6 * scale)
    np.testing.assert_allclose(td_errors, expected["td_error"], rtol=2e-5, atol=2e-6 * scale)
    np.testing.assert_allclose(priority, expected["priority"], rtol=2e-5, atol=2e-6 * scale)
    loss = 0.5 * np.square(td_errors).sum(0)
    np.testing.assert_allclose(loss, expected["loss_per_sequence"], rtol=5e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [(1, True, True), (3, False, False), (40, True, True)])
def test_equals_a_walk_through_every_episode(settings):
    n_step, rescale, double = settings
    num_valid = 0
    for seed in range(30):
        case = random_case(seed)
        valid, rows = case["valid"], np.arange(len(case["rewards"]))[:, None]
        targets, td_errors, priority = in_one_program(case, n_step=n_step, rescale=rescale, double=double)
        expected = walked_targets(case, n_step=n_step, rescale=rescale, double=double)
        taken = case["q_online"][rows, np.arange(valid.shape[1]), case["actions"]]
        errors = np.where(valid, expected - taken, 0)
        np.testing.assert_allclose(targets, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(td_errors, errors, rtol=1e-4, atol=2e-4)
        for b in range(valid.shape[1]):
            sizes = np.abs(errors[valid[:, b], b])
            size = 0.9 * sizes.max() + 0.1 * sizes.mean() if sizes.size else 0.0
            np.testing.assert_allclose(priority[b], size, rtol=1e-4, atol=2e-4)
        num_valid += valid.sum()
    assert num_valid > 500


def test_the_bootstrap_is_discounted_as_often_as_there_are_rewards():
    # An episode of two steps that terminates, its invalid row, and one that goes on past the end.
    rewards = np.array([1, 0, 99, -1, 2, 0, 3], np.float32)[:, None]
    valid = np.array([1, 1, 0, 1, 1, 1, 1], bool)[:, None]
    values = np.array([0, 10, 20, 99, 30, 40, 50, 60], np.float32)[:, None, None]

    def targets(end_discount):
        discounts = np.where(np.arange(7) == 1, end_discount, 0.5).astype(np.float32)[:, None]
        case = {"q_online": values, "q_target": values, "actions": np.zeros((7, 1), np.int32)}
        case |= {"rewards": rewards, "discounts": discounts, "valid": valid}
        return in_one_program(case, n_step=2, rescale=False)[0][:, 0]

    np.testing.assert_allclose(targets(0.0), [1, 0, 0, 10, 14.5, 16.5, 33], rtol=1e-6)
    # Truncated instead, both rows bootstrap from the true final observation.
    np.testing.assert_allclose(targets(0.5), [6, 10, 0, 10, 14.5, 16.5, 33], rtol=1e-6)


def test_gradients_reach_the_taken_actions_only():
    case = random_case(6)
    taken = np.zeros_like(case["q_online"])
    rows, columns = np.nonzero(case["valid"])
    taken[rows, columns, case["actions"][rows, columns]] = -1

    def errors(q_online, q_target):
        arguments = {**case, "q_online": q_online, "q_target": q_target}
        return n_step_double_q(**arguments, n_step=2, rescale=True).td_errors.sum()

    gradients = jax.jit(jax.grad(errors, (0, 1)))(case["q_online"], case["q_target"])
    np.testing.assert_array_equal(gradients[0], taken)
    np.testing.assert_array_equal(gradients[1], 0)
    assert (taken != 0).any() and not case["valid"].all()


def test_rows_that_are_not_valid_may_hold_anything():
    case = random_case(6)
    expected = in_one_program(case, n_step=3, rescale=True)
    for name in ("rewards", "discounts"):
        case[name] = np.where(case["valid"], case[name], np.nan)
    for a, b in zip(in_one_program(case, n_step=3, rescale=True), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_value_rescaling_reference_values():
    x = jnp.array([row["x"] for row in RESCALED])
    # The differences in the reference's own float64 lose digits below 1e-6.
    np.testing.assert_allclose(value_rescale(x), [row["h"] for row in RESCALED], rtol=1e-6, atol=1e-15)
    inverse = [row["h_inv"] for row in RESCALED]
    np.testing.assert_allclose(value_rescale_inverse(x), inverse, rtol=2e-6, atol=1e-14)


def test_value_rescaling_and_back_loses_nothing():
    magnitude = np.logspace(-12, 12, 481).astype(np.float32)
    x = jnp.asarray(np.concatenate([-magnitude[::-1], [np.float32(0)], magnitude]))
    rescaled = value_rescale(x)
    assert rescaled.dtype == jnp.float32 and (np.diff(rescaled) > 0).all()
    np.testing.assert_allclose(value_rescale_inverse(rescaled), x, rtol=2e-6)


@pytest.mark.parametrize("name", ["q_target", "actions", "rewards", "discounts", "valid"])
def test_shapes_that_do_not_fit_are_refused(name):
    case = random_case(6)
    case[name] = case[name][1:]
    with pytest.raises(ValueError, match=name):
        n_step_double_q(**case, n_step=1, rescale=False)


def test_a_q_function_without_actions_is_refused():
    case = random_case(6)
    case |= {name: case[name][..., 0] for name in ("q_online", "q_target")}
    with pytest.raises(ValueError, match=r"\[T\+1, B, A\]"):
        n_step_double_q(**case, n_step=1, rescale=False)
