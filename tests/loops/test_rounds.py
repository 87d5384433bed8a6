"""Rounds of unrolls that all hosts take together, with hosts that are threads here."""

import threading

import numpy as np
import pytest

from zerocopy_seed import hosts
from zerocopy_seed.loops.rounds import Rounds, figures_of_all
from zerocopy_seed.remote.engine import Round


class Actors:
    """Gives what it is told to, a round or None a call; the engine too: its empty trajectory is "nothing"."""

    def __init__(self, *rounds):
        self._rounds = list(rounds)

    def take(self, timeout):
        return self._rounds.pop(0) if self._rounds else None

    def empty_trajectory(self):
        return "nothing"


def a_round(name, is_due, *slots):
    return Round(name, is_due, np.array(slots, np.int32))


def take_all(monkeypatch, *actors, ending=()):
    """What every host takes until a time is over, as (trajectory, due, slots); `ending` hosts end at once."""
    count, here = len(actors), threading.local()
    barrier, taken = threading.Barrier(count, timeout=20), [[] for _ in actors]
    votes = np.zeros((count, 3), np.int32)

    def gather(numbers):
        votes[here.index] = numbers
        barrier.wait()
        found = votes.copy()
        barrier.wait()
        return found

    monkeypatch.setattr(hosts, "count", lambda: count)
    monkeypatch.setattr(hosts, "gather", gather)

    def play(index):
        here.index = index
        rounds, asked = Rounds(actors[index], actors[index]), 0

        def is_ending():
            nonlocal asked
            asked += 1
            return index in ending or asked > 10

        while (one := rounds.take(np.inf, is_ending)) is not None:
            taken[index].append((one.trajectory, one.is_due, one.slot.tolist()))

    threads = [threading.Thread(target=play, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return taken


def test_who_has_none_is_waited_for(monkeypatch):
    fast = Actors(a_round("a", True, 0, 1), a_round("b", True, 0, 1))
    slow = Actors(None, None, a_round("c", True, 2), None, a_round("d", True, 3))
    assert take_all(monkeypatch, fast, slow) == [
        [("a", True, [0, 1]), ("b", True, [0, 1])],
        [("c", True, [2]), ("d", True, [3])],
    ]


def test_an_update_is_due_where_it_is_everywhere(monkeypatch):
    """Who has enough takes rounds of nothing, and remembers whose unrolls it had."""
    first = Actors(a_round("a", True, 0, 1), a_round("b", False, 0), a_round("c", True, 1))
    second = Actors(
        a_round("d", False, 2), a_round("e", False, 3), a_round("f", True, 2), a_round("g", True, 2, 3)
    )
    assert take_all(monkeypatch, first, second) == [
        [
            ("a", False, [0, 1]),
            ("nothing", False, []),
            ("nothing", True, [0, 1]),
            ("b", False, [0]),
            ("c", True, [1]),
        ],
        [
            ("d", False, [2]),
            ("e", False, [3]),
            ("f", True, [2]),
            ("g", False, [2, 3]),
            ("nothing", True, [2, 3]),
        ],
    ]


def test_nobody_goes_on_where_one_ends(monkeypatch):
    assert take_all(
        monkeypatch, Actors(a_round("a", True, 0)), Actors(a_round("b", True, 1)), ending=(1,)
    ) == [[], []]


def test_the_figures_of_all_are_sums_maxima_and_means():
    names = ("num_episodes", "dropped_steps", "inference_fill", "policy_lag_max", "episode_return")
    rows: list[dict[str, float]] = [
        dict(zip(names, numbers, strict=False))
        for numbers in ((3, 1, 0.5, 2, 1.0), (1, 4, 1.0, 7, 5.0), (0, 0, 0.0))  # the last had no episodes
    ]
    expected = dict(zip(names, (4, 5, 0.5, 7, 2.0), strict=True))
    assert figures_of_all(rows) == pytest.approx(expected)
    assert figures_of_all(rows[:1]) == rows[0]
