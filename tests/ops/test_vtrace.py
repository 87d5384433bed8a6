import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_seed.ops import vtrace as vtrace_module

vtrace = jax.jit(vtrace_module.vtrace)

CASES = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "vtrace.json").read_text())
FIRST, MID, LAST = 0, 1, 2


def paper_vtrace(values, rewards, discounts, log_rhos, valid, lambda_, clip_rho, clip_c, clip_pg_rho):
    """Eq. 1's sum, term by term, one stream at a time, in float64."""
    num_steps, num_streams = rewards.shape
    targets = np.array(values[:-1], np.float64)
    advantages = np.zeros_like(targets)
    for b in range(num_streams):
        for s in range(num_steps):
            total, trace = 0.0, 1.0
            for t in range(s, num_steps):
                if not valid[t, b]:
                    break
                rho = min(clip_rho, np.exp(log_rhos[t, b]))
                delta = rho * (rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b])
                total += trace * delta
                trace *= discounts[t, b] * lambda_ * min(clip_c, np.exp(log_rhos[t, b]))
            targets[s, b] += total
    next_targets = np.concatenate([targets[1:], values[-1:]])
    for b in range(num_streams):
        for s in range(num_steps):
            if valid[s, b]:
                ratio = min(clip_pg_rho, np.exp(log_rhos[s, b]))
                advantages[s, b] = ratio * (
                    rewards[s, b] + discounts[s, b] * next_targets[s, b] - values[s, b]
                )
    return targets, advantages


def random_stream(seed, num_steps=40, num_streams=7, lost_actors=True):
    """A stream of short episodes: terminated, truncated, cut at both ends, some lost in the middle."""
    rng = np.random.default_rng(seed)
    step_type = np.zeros([num_steps + 1, num_streams], np.int8)
    discount = np.ones([num_steps + 1, num_streams], np.float32)
    for b in range(num_streams):
        previous = rng.choice([FIRST, MID, LAST])
        step_type[0, b] = previous
        for t in range(1, num_steps + 1):
            if previous == LAST or (lost_actors and rng.random() < 0.05):
                previous = FIRST
            else:
                previous = LAST if rng.random() < 0.2 else MID
                discount[t, b] = 0.0 if previous == LAST and rng.random() < 0.5 else 1.0
            step_type[t, b] = previous
    reward = np.where(step_type == FIRST, 0.0, rng.normal(size=step_type.shape)).astype(np.float32)
    values = rng.normal(size=step_type.shape).astype(np.float32)
    log_rhos = rng.normal(size=(num_steps, num_streams)).astype(np.float32)
    return step_type, discount, reward, values, log_rhos


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_reference_values(case):
    step_type = np.array(case["step_type"])
    valid = step_type[1:] != FIRST
    result = vtrace(
        jnp.array(case["value"], jnp.float32),
        jnp.array(case["reward"], jnp.float32)[1:],
        case["gamma"] * jnp.array(case["discount"], jnp.float32)[1:],
        jnp.array(case["log_rho"], jnp.float32),
        jnp.array(valid),
        **{name: case[name] for name in ("lambda_", "clip_rho", "clip_c", "clip_pg_rho")},
    )
    np.testing.assert_array_equal(valid, np.array(case["expect"]["mask"], bool))
    scale = np.abs(case["expect"]["vs"]).max()
    np.testing.assert_allclose(result.targets, case["expect"]["vs"], rtol=2e-5, atol=2e-6 * scale)
    scale = np.abs(case["expect"]["pg_advantage"]).max()
    np.testing.assert_allclose(
        result.advantages, case["expect"]["pg_advantage"], rtol=2e-5, atol=2e-6 * scale
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "lambda_, clips", [(1.0, (1.0, 1.0, 1.0)), (0.9, (2.0, 1.3, 1.5)), (0.0, (1.0, 1.0, 1.0))]
)
def test_equals_the_papers_sum(seed, lambda_, clips):
    step_type, discount, reward, values, log_rhos = random_stream(seed)
    valid = step_type[1:] != FIRST
    arguments = (values, reward[1:], 0.97 * discount[1:], log_rhos, valid)
    clip_rho, clip_c, clip_pg_rho = clips
    result = vtrace(
        *map(jnp.asarray, arguments),
        lambda_=lambda_,
        clip_rho=clip_rho,
        clip_c=clip_c,
        clip_pg_rho=clip_pg_rho,
    )
    targets, advantages = paper_vtrace(*arguments, lambda_, *clips)
    np.testing.assert_allclose(result.targets, targets, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.advantages, advantages, rtol=1e-4, atol=1e-4)


def test_a_stream_equals_its_episodes_one_by_one():
    step_type, discount, reward, values, log_rhos = random_stream(5, num_streams=2)
    valid = step_type[1:] != FIRST
    whole = vtrace(
        *map(jnp.asarray, (values, reward[1:], 0.95 * discount[1:], log_rhos, valid)), lambda_=0.95
    )
    num_pieces = 0
    for b in range(step_type.shape[1]):
        starts = [0, *(t for t in range(1, len(step_type)) if step_type[t, b] == FIRST)]
        for start, end in zip(starts, [*starts[1:], len(step_type)], strict=True):
            if end - start < 2:
                continue
            piece, column = slice(start, end), slice(b, b + 1)
            alone = vtrace(
                jnp.asarray(values[piece, column]),
                jnp.asarray(reward[piece, column][1:]),
                jnp.asarray(0.95 * discount[piece, column][1:]),
                jnp.asarray(log_rhos[start : end - 1, column]),
                jnp.ones([end - start - 1, 1], bool),
                lambda_=0.95,
            )
            rows = slice(start, end - 1)
            np.testing.assert_allclose(whole.targets[rows, column], alone.targets, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(whole.advantages[rows, column], alone.advantages, rtol=1e-5, atol=1e-5)
            num_pieces += 1
    assert num_pieces > 5


def test_on_policy_it_is_the_n_step_return():
    values = jnp.array([[0.5], [-0.2], [0.9], [4.0]])
    rewards = jnp.array([[1.0], [2.0], [3.0]])
    discounts = jnp.full([3, 1], 0.9)
    result = vtrace(values, rewards, discounts, jnp.zeros([3, 1]), jnp.ones([3, 1], bool))
    expected = np.array([1 + 0.9 * (2 + 0.9 * (3 + 0.9 * 4)), 2 + 0.9 * (3 + 0.9 * 4), 3 + 0.9 * 4])
    np.testing.assert_allclose(result.targets[:, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(result.advantages[:, 0], expected - values[:-1, 0], rtol=1e-6)


def test_truncation_bootstraps_and_termination_does_not():
    # GAE with lambda 1 is V-trace's advantage on policy; the classic fault treats both ends alike.
    values = jnp.array([[1.0], [1.0], [1.0], [1.0], [10.0]])
    rewards = jnp.zeros([4, 1])
    valid = jnp.array([[True], [True], [True], [False]])
    for environment_discount, expected in ((1.0, -0.1), (0.0, -1.0)):
        discounts = 0.9 * jnp.array([[1.0], [1.0], [environment_discount], [1.0]])
        result = vtrace(values, rewards, discounts, jnp.zeros([4, 1]), valid)
        np.testing.assert_allclose(result.advantages[2, 0], expected, rtol=1e-5)


def test_long_sums_do_not_stop():
    ones = jnp.ones([300, 1])
    result = vtrace(jnp.zeros([301, 1]), ones, ones, jnp.zeros([300, 1]), jnp.ones([300, 1], bool))
    assert result.targets[0, 0] == 300


@pytest.mark.parametrize("log_rho", [100.0, -100.0, 1e9, -1e9])
@pytest.mark.parametrize("clip", [1.0, float("inf")])
def test_extreme_ratios_stay_finite(log_rho, clip):
    log_rhos = jnp.full([20, 2], log_rho)
    ones = jnp.ones([20, 2])
    result = vtrace(
        jnp.ones([21, 2]),
        ones,
        ones,
        log_rhos,
        jnp.ones([20, 2], bool),
        clip_rho=clip,
        clip_c=clip,
        clip_pg_rho=clip,
    )
    assert np.isfinite(np.square(result.targets)).all() and np.isfinite(np.square(result.advantages)).all()


def test_invalid_rows_may_hold_anything():
    nan = jnp.array([[jnp.nan], [1.0]])
    result = vtrace(jnp.ones([3, 1]), nan, nan, nan, jnp.array([[False], [True]]))
    assert np.isfinite(result.targets).all()
    assert result.targets[0, 0] == 1 and result.advantages[0, 0] == 0


def test_gradients_are_stopped():
    ones = jnp.ones([2, 1])

    def total(values):
        result = vtrace(values, ones, ones, 0.1 * ones, ones.astype(bool))
        return result.targets.sum() + result.advantages.sum()

    np.testing.assert_array_equal(jax.grad(total)(jnp.ones([3, 1])), 0)


def test_wrong_shapes_are_refused():
    ones = jnp.ones([2, 1])
    with pytest.raises(AssertionError):
        vtrace(ones, ones, ones, ones, ones.astype(bool))
