"""Interquartile means, intervals and curves, against the definitions."""

import numpy as np
import pytest
import scipy.stats

from zerocopy_seed.curves import final_return, mean_curve, read_points, smoothed
from zerocopy_seed.interquartile import bootstrap_interval, interquartile_mean
from zerocopy_seed.metrics import read_metrics


@pytest.mark.parametrize("num_scores", [1, 2, 3, 4, 5, 8, 31, 32])
def test_interquartile_mean_is_the_trimmed_mean(num_scores):
    scores = np.random.default_rng(num_scores).normal(size=(3, num_scores))
    np.testing.assert_allclose(interquartile_mean(scores), scipy.stats.trim_mean(scores, 0.25, axis=-1))


def test_interquartile_mean_of_known_numbers():
    assert interquartile_mean(np.array([100.0, 1.0, 2.0, 3.0, -50.0, 4.0, 5.0, 1e9])) == 3.5


def test_bootstrap_interval_is_scipys():
    scores = np.random.default_rng(0).gamma(2.0, size=20)
    low, high = bootstrap_interval(scores)
    expected = scipy.stats.bootstrap(
        (scores,), lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis), method="percentile", rng=1
    ).confidence_interval
    width = expected.high - expected.low
    assert low == pytest.approx(expected.low, abs=0.05 * width)
    assert high == pytest.approx(expected.high, abs=0.05 * width)
    assert bootstrap_interval(np.array([3.0])) == (3.0, 3.0)
    tighter = bootstrap_interval(scores, confidence=0.5)
    assert low < tighter[0] < tighter[1] < high


def rows(points):
    return [{"env_steps": at, "num_episodes": 2, "episode_return": value} for at, value in points]


def test_curves_are_averaged_where_all_runs_have_got():
    runs = [rows([(0, 0.0), (100, 10.0)]), rows([(20, 4.0), (120, 4.0)]), [{"env_steps": 50}], []]
    curve = mean_curve("both", runs)
    assert curve is not None and curve.low is not None and curve.high is not None
    assert (curve.env_steps[0], curve.env_steps[-1]) == (20, 100)
    np.testing.assert_allclose(curve.returns, (curve.env_steps / 10 + 4.0) / 2)
    np.testing.assert_allclose(curve.low, np.minimum(curve.env_steps / 10, 4.0))
    np.testing.assert_allclose(curve.high, np.maximum(curve.env_steps / 10, 4.0))
    assert mean_curve("none", [[], [{"env_steps": 5}]]) is None
    (one,) = {len(part) for part in mean_curve("apart", [rows([(5, 1.0)]), rows([(9, 3.0)])])[1:]}  # type: ignore
    assert one == 1


def test_final_return_is_of_the_last_tenth():
    run = rows([(10, 1.0), (90, 5.0), (91, 2.0), (100, 4.0)])
    run[-1]["num_episodes"] = 6
    assert final_return([*run[:3], {"env_steps": 95, "num_episodes": 0}, run[3]]) == pytest.approx(3.5)
    assert final_return([*run, {"env_steps": 10**6, "num_episodes": 0}]) is None
    assert final_return([]) is None


def test_lines_that_no_run_wrote_are_passed_over(tmp_path):
    lines = ['{"env_steps": "x", "episode_return": 3}', '{"env_steps": 10, "episode_return": "abc"}', "[1]"]
    whole = '{"env_steps": 20, "episode_return": 4}'
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, whole, whole[:9]]))
    env_steps, returns = read_points(read_metrics(tmp_path))
    assert (env_steps.tolist(), returns.tolist()) == ([20.0], [4.0])


def test_smoothing_keeps_constants_and_needs_many_points():
    smooth, width = smoothed(np.full(100, 3.0))
    assert width == 5 and (smooth == 3.0).all()
    np.testing.assert_array_equal(smoothed(np.arange(39.0))[0], np.arange(39.0))
