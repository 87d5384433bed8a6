"""The interquartile mean and how sure it is (Agarwal et al. 2021, arXiv:2108.13264). Imports no JAX."""

from __future__ import annotations

import numpy as np

_RESAMPLES = 2000


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half: a quarter of the scores (rounded down) is cut off at either end.

    Args:
      scores: [..., n], n at least 1.

    Returns:
      [...].
    """
    ordered = np.sort(scores, axis=-1)
    num_scores = ordered.shape[-1]
    cut = num_scores // 4
    return ordered[..., cut : num_scores - cut].mean(-1)


def bootstrap_interval(
    scores: np.ndarray, *, confidence: float = 0.95, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Between which the interquartile mean lies, by the percentiles of 2000 samples drawn with replacement.

    Args:
      scores: [..., n], n at least 1; the same seeds are drawn for all.
      confidence: of the interval.
      seed: of the draws.

    Returns:
      The lower and the upper end, [...].
    """
    num_scores = scores.shape[-1]
    drawn = np.random.default_rng(seed).integers(num_scores, size=(_RESAMPLES, num_scores))
    means = interquartile_mean(scores[..., drawn])
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(means, [tail, 100.0 - tail], axis=-1)
    return low, high
