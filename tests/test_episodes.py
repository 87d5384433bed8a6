import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs.types import TimeStep
from zerocopy_seed.episodes import add_episodes, make_episode_sums, make_tracker, sum_episodes, track_episodes
from zerocopy_seed.ops.counters import as_int

FIRST, MID, LAST = 0, 1, 2


def rows(step_type, reward):
    step_type = jnp.array(step_type, jnp.int8)[:, None]
    reward = jnp.array(reward, jnp.float32)[:, None]
    return TimeStep(step_type, reward, jnp.ones_like(reward), reward)


def finished(episodes):
    ended = np.asarray(episodes.ended)
    return np.asarray(episodes.return_)[ended].tolist(), np.asarray(episodes.length)[ended].tolist()


def test_only_whole_episodes_count():
    # An episode that ends, one whose actor is lost, one that goes on in the next unroll.
    tracker, episodes = track_episodes(
        make_tracker(1),
        rows([FIRST, MID, LAST, FIRST, MID, FIRST, MID], [0, 1, 2, 0, 50, 0, 7]),
    )
    assert finished(episodes) == ([3.0], [2])
    _, episodes = track_episodes(tracker, rows([MID, MID, LAST], [7, 1, 1]))
    assert finished(episodes) == ([9.0], [3])


def test_a_return_of_zero_is_a_return():
    _, episodes = track_episodes(make_tracker(1), rows([FIRST, MID, LAST], [0, 0, 0]))
    sums = add_episodes(make_episode_sums(), sum_episodes(episodes))
    assert as_int(sums.num_episodes) == 1 and float(sums.return_sum.total) == 0


def test_long_episodes_do_not_lose_rewards():
    tracker = make_tracker(1)
    tracker = tracker._replace(return_so_far=tracker.return_so_far._replace(total=jnp.full([1], 2.0**24)))
    step_type = np.full(65, MID)
    step_type[-1] = LAST
    tracker, _ = jax.jit(track_episodes)(tracker, rows(step_type, np.ones(65)))
    assert float(tracker.return_so_far.total[0] - tracker.return_so_far.error[0]) == 2**24 + 64


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_unrolls_join(cut):
    rng = np.random.default_rng(0)
    step_type, reward = [FIRST], [0.0]
    while len(step_type) < 61:
        step_type.append(FIRST if step_type[-1] == LAST else rng.choice([MID, MID, LAST]))
        reward.append(0.0 if step_type[-1] == FIRST else float(rng.integers(5)))
    _, whole = track_episodes(make_tracker(1), rows(step_type, reward))
    tracker, first = track_episodes(make_tracker(1), rows(step_type[: cut + 1], reward[: cut + 1]))
    _, second = track_episodes(tracker, rows(step_type[cut:], reward[cut:]))
    joined = tuple(a + b for a, b in zip(finished(first), finished(second), strict=True))
    assert joined == finished(whole)
    assert len(joined[0]) > 10
