"""Returns and lengths of whole episodes, from the rows of unrolls."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from zerocopy_envs.types import StepType, TimeStep
from zerocopy_seed.ops import counters, summation
from zerocopy_seed.ops.summation import CompensatedSum
from zerocopy_seed.types import Array, Counter


class EpisodeTracker(NamedTuple):
    """The episode that each slot is in: `return_so_far` sums [B], `length` [B] int32."""

    return_so_far: CompensatedSum
    length: Array


class FinishedEpisodes(NamedTuple):
    """Rows [T, B]: `ended` bool, and where it is True the episode's undiscounted `return_` and `length`."""

    ended: Array
    return_: Array
    length: Array


def make_tracker(num_slots: int) -> EpisodeTracker:
    """Slots that have not begun an episode."""
    return EpisodeTracker(summation.make_sum((num_slots,)), jnp.zeros([num_slots], jnp.int32))


def track_episodes(tracker: EpisodeTracker, timestep: TimeStep) -> tuple[EpisodeTracker, FinishedEpisodes]:
    """Follows episodes through rows 1..T of an unroll's `timestep` [T+1, B].

    A FIRST begins anew: what a lost actor left unfinished is no episode.
    """

    def one_row(tracker: EpisodeTracker, row):
        step_type, reward = row
        first = step_type == StepType.FIRST
        # The sum restarts by a factor, since a select per field costs more operations in this small loop.
        keep = 1.0 - first.astype(jnp.float32)
        so_far = summation.add(
            CompensatedSum(tracker.return_so_far.total * keep, tracker.return_so_far.error * keep),
            reward * keep,
        )
        length = jnp.where(first, 0, tracker.length + 1)
        return EpisodeTracker(so_far, length), (so_far.total, length)

    rows = (timestep.step_type[1:], timestep.reward[1:])
    tracker, (returns, lengths) = lax.scan(one_row, tracker, rows, unroll=8)
    ended = timestep.step_type[1:] == StepType.LAST
    return tracker, FinishedEpisodes(ended, returns, lengths)


class EpisodeSums(NamedTuple):
    """Over the episodes of a while: how many, their summed length and their summed return; scalars."""

    num_episodes: Counter
    length_sum: Counter
    return_sum: CompensatedSum


def make_episode_sums() -> EpisodeSums:
    """No episodes."""
    return EpisodeSums(counters.make_counter(), counters.make_counter(), summation.make_sum())


def sum_episodes(episodes: FinishedEpisodes) -> tuple[Array, Array, Array]:
    """Number, summed length and summed return of the episodes that ended."""
    ended = episodes.ended
    return (
        ended.sum(dtype=jnp.int32),
        jnp.where(ended, episodes.length, 0).sum(dtype=jnp.int32),
        jnp.where(ended, episodes.return_, 0.0).sum(),
    )


def add_episodes(sums: EpisodeSums, counted: tuple[Array, Array, Array]) -> EpisodeSums:
    """`sums` with what `sum_episodes` counted."""
    num_episodes, length_sum, return_sum = counted
    return EpisodeSums(
        counters.increment(sums.num_episodes, num_episodes),
        counters.increment(sums.length_sum, length_sum),
        summation.add(sums.return_sum, return_sum),
    )
