"""The ledger of slots: whole unrolls, their lag, lost actors, and room for what comes."""

import math

import jax
import numpy as np
import pytest

from zerocopy_seed.remote.bridge import show_slots
from zerocopy_seed.remote.requests import make_request
from zerocopy_seed.remote.slots import Slots

FIRST, MID, LAST = 0, 1, 2


def make(num_slots=3, length=2, *, max_lag=math.inf, distinct=False):
    return Slots(num_slots, length, max_lag=max_lag, distinct=distinct)


def request(slot, step_type, reward=0.0):
    slot, step_type = np.asarray(slot, np.int32), np.asarray(step_type, np.int8)
    reward = np.full(slot.shape, reward, np.float32)
    return make_request(slot, step_type, reward, np.ones_like(reward), (), lambda actions: None)


def play(slots, slot, step_type, reward=0.0):
    """One timestep of some slots, answered: (closed, unroll, row)."""
    slot, step_type = np.asarray(slot, np.int32), np.asarray(step_type, np.int8)
    assert slots.check(request(slot, step_type)) is None
    slots.arrived(slot)
    closed = slots.note(slot, step_type, np.broadcast_to(np.float32(reward), slot.shape))
    unroll, row = slots.begin_rows(slot)
    slots.answered(slot)
    return closed.tolist(), unroll.tolist(), row.tolist()


def test_an_unroll_is_length_rows_and_the_next_timestep_closes_it():
    slots = make()
    opened = slots.open(2)
    assert opened.tolist() == [0, 1]
    nowhere = slots.num_unrolls
    closed, unroll, row = play(slots, [0, 1], [FIRST, FIRST])
    assert (closed, row) == ([nowhere] * 2, [0, 0])
    assert play(slots, [0, 1], [MID, LAST])[2] == [1, 1]
    assert slots.num_finished == 0
    closed, later, row = play(slots, [0, 1], [MID, FIRST])
    assert (closed, row, slots.num_finished) == (unroll, [0, 0], 2)
    assert not set(later) & set(unroll)
    taken = slots.take(3)
    assert taken.slot.tolist() == [0, 1]
    assert taken.unroll.tolist() == unroll
    assert taken.continues.tolist() == [False, False]
    for step in (MID, MID):
        play(slots, [0, 1], [step, step])
    assert slots.take(3).continues.tolist() == [True, True]


def test_slots_are_shown_in_a_line_however_many_they_are():
    assert show_slots(np.array([0, 1, 2, 8])) == "0-2, 8"
    assert show_slots(np.arange(0, 2000, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 990 more"


def test_lag_counts_updates_since_the_oldest_row():
    slots = make(1)
    slots.open(1)
    play(slots, [0], [FIRST])
    slots.version += 1
    play(slots, [0], [MID])
    slots.version += 2
    play(slots, [0], [MID])
    assert slots.take(1).lag.tolist() == [3]


def test_a_first_without_a_last_drops_what_was_begun_and_breaks_the_stream():
    slots = make(2, 3)
    slots.open(2)
    for step in (FIRST, MID):
        play(slots, [0, 1], [step, step])
    closed, _, row = play(slots, [0, 1], [FIRST, MID])
    assert row == [0, 2]
    assert slots.num_dropped == 2
    for _ in range(3):
        play(slots, [0], [MID])
    taken = slots.take(2)
    assert (taken.slot.tolist(), taken.continues.tolist()) == ([0], [False])


def test_a_first_in_place_of_the_closing_timestep_drops_the_whole_unroll():
    slots = make(1, 2)
    slots.open(1)
    for step in (FIRST, MID, FIRST):
        play(slots, [0], [step])
    assert (slots.num_finished, slots.num_dropped) == (0, 2)


def test_a_lost_actor_leaves_finished_unrolls_and_a_slot_that_starts_fresh():
    slots = make(2, 2)
    slots.open(2)
    for step in (FIRST, MID, MID):
        play(slots, [0, 1], [step, step])
    free_before = len(slots._free)
    slots.close(np.array([0], np.int32))
    assert slots.num_dropped == 1
    assert len(slots._free) == free_before + 1
    assert slots.open(1).tolist() == [0]
    assert slots.incarnation.tolist() == [1, 0]
    assert slots.check(request([0], [MID])) == ("FIRST (0) at the start and after a LAST", 0)
    for step in (FIRST, MID, MID):
        play(slots, [0], [step])
    taken = slots.take(9)
    assert taken.slot.tolist() == [0, 0, 1]
    assert taken.continues.tolist() == [False, False, False]


def test_messages_out_of_turn_are_noticed():
    slots = make(2)
    slots.open(2)
    slot = np.array([0, 1], np.int32)
    assert slots.check(request(slot, [FIRST, FIRST])) is None
    slots.arrived(slot)
    assert slots.check(request(slot, [FIRST, FIRST])) == ("no message before the answer to the last one", 0)
    slots.note(slot, np.array([FIRST, FIRST], np.int8), np.zeros(2, np.float32))
    slots.begin_rows(slot)
    slots.answered(slot)
    play(slots, [1], [LAST])
    assert slots.check(request(slot, [MID, MID])) == ("FIRST (0) at the start and after a LAST", 1)


def test_the_short_way_of_usual_requests_comes_to_the_same():
    rng = np.random.default_rng(0)
    plain, short = make(6, 4), make(6, 4)
    for slots in (plain, short):
        slots.open(6)
    has_ended, num_short = np.ones(6, bool), 0
    for _ in range(300):
        begin, end = sorted(rng.choice(7, 2, replace=False))
        slot = np.arange(begin, end, dtype=np.int32)
        step_type = np.where(
            has_ended[slot], FIRST, rng.choice([FIRST, MID, LAST], slot.shape, p=[0.01, 0.97, 0.02])
        )
        has_ended[slot] = step_type == LAST
        asked = request(slot, step_type.astype(np.int8), rng.normal())
        expected = play(plain, slot, step_type, asked.reward[0])
        places = np.empty((4, len(slot)), np.int32)
        assert short.check(asked) is None
        short.arrived(asked.where)
        if short.go_on(asked, places):
            num_short += 1
            np.testing.assert_array_equal(places, [slot, expected[1], expected[2], expected[0]])
        else:
            closed = short.note(slot, asked.step_type, asked.reward)
            assert (closed.tolist(), *(rows.tolist() for rows in short.begin_rows(slot))) == expected
        short.answered(asked.where)
        if plain.num_finished > 5:
            taken, theirs = plain.take(9), short.take(9)
            jax.tree.map(np.testing.assert_array_equal, taken, theirs)
            plain.give_back(taken.unroll)
            short.give_back(taken.unroll)
    assert num_short > 50
    assert plain.num_dropped == short.num_dropped > 0
    jax.tree.map(np.testing.assert_array_equal, plain.take_episodes(), short.take_episodes())


def test_unrolls_of_different_slots_only_where_asked():
    for distinct, expected in ((False, [0, 0, 0]), (True, [0, 1])):
        slots = make(3, 1, distinct=distinct)
        slots.open(2)
        play(slots, [0, 1], [FIRST, FIRST])
        for _ in range(3):
            play(slots, [0], [MID])
        play(slots, [1], [MID])
        assert slots.take(3).slot.tolist() == expected


def test_unrolls_of_one_slot_are_taken_in_their_order():
    slots = make(1, 1, distinct=True)
    slots.open(1)
    order = [play(slots, [0], [FIRST if i == 0 else MID])[1][0] for i in range(3)]
    assert [slots.take(1).unroll.tolist() for _ in range(2)] == [[order[0]], [order[1]]]


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_a_slot_waits_once_so_many_of_its_unrolls_are_not_learned_from(max_lag):
    slots = make(2, 1, max_lag=max_lag)
    slots.open(2)
    both = np.array([0, 1], np.int32)
    play(slots, both, [FIRST, FIRST])
    for _ in range(max_lag):
        assert slots.may_begin(both, 0)
        play(slots, both, [MID, MID])
    slots.note(both, np.array([MID, MID], np.int8), np.zeros(2, np.float32))
    assert not slots.may_begin(both, 0)
    assert slots.all_finished
    taken = slots.take(2)
    assert taken.slot.tolist() == [0, 1]
    assert not slots.may_begin(both, 0)  # taken, but the update is not published
    slots.version += 1
    slots.learned(taken.slot)
    assert slots.may_begin(both, 0)
    slots.begin_rows(both)
    slots.answered(both)
    for lag in range(1, max_lag + 1):
        taken = slots.take(2)
        assert (taken.lag <= max_lag).all(), lag
        slots.version += 1
        slots.learned(taken.slot)


def test_in_lock_step_a_lost_actor_blocks_nobody():
    slots = make(2, 1, max_lag=0)
    slots.open(2)
    play(slots, [0, 1], [FIRST, FIRST])
    slots.note(np.array([0], np.int32), np.array([MID], np.int8), np.zeros(1, np.float32))
    assert not slots.all_finished
    slots.close(np.array([1], np.int32))
    assert slots.all_finished


def test_there_is_always_room_while_the_learner_waits():
    rng = np.random.default_rng(0)
    slots = make(8, 3)
    everybody = slots.open(8)
    has_begun = np.zeros(8, bool)
    for _ in range(2000):
        some = everybody[rng.random(8) < rng.random()]
        if not len(some):
            continue
        if slots.num_finished >= 8:
            taken = slots.take(8)
            slots.give_back(taken.unroll)
            slots.learned(taken.slot)
        assert slots.may_begin(some, 0)
        play(slots, some, np.where(has_begun[some], MID, FIRST))
        has_begun[some] = True
    assert len(slots._free) + slots.num_finished + int((slots._unroll >= 0).sum()) == slots.num_unrolls


def test_returns_are_summed_by_episode_and_unclipped():
    slots = make(1, 4)
    slots.open(1)
    for step, reward in (
        (FIRST, 0),
        (MID, 7),
        (MID, 0),
        (LAST, -20),
        (FIRST, 0),
        (LAST, 5),
        (FIRST, 0),
        (MID, 9),
    ):
        play(slots, [0], [step], reward)
    assert [part.tolist() for part in slots.take_episodes()] == [[0, 0], [-13, 5], [3, 1]]
    assert [part.tolist() for part in slots.take_episodes()] == [[], [], []]
    play(slots, [0], [LAST], 1)
    assert [part.tolist() for part in slots.take_episodes()] == [[0], [10], [2]]


def test_who_joins_while_an_update_is_under_way_waits_for_it():
    slots = make(2, 1, max_lag=0)
    slots.open(1)
    for step in (FIRST, MID):
        assert slots.may_begin(np.array([0]), 0)
        play(slots, [0], [step])
    taken = slots.take(2)
    joined = slots.open(1)
    assert not slots.may_begin(joined, 0)
    slots.version += 1
    slots.learned(taken.slot)
    assert slots.may_begin(joined, 0)


def test_versions_past_2_to_the_31():
    slots = Slots(1, 2, max_lag=np.inf, distinct=False)
    slot = slots.open(1)
    slots.version = 2**31 - 1
    for step_type in (0, 1, 1):
        slots.note(slot, np.array([step_type], np.int8), np.zeros(1, np.float32))
        slots.begin_rows(slot)
    slots.version += 5
    np.testing.assert_array_equal(slots.take(1).lag, [5])
