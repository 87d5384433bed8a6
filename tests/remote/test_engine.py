"""Streams that go in by pieces come out as whole unrolls, whoever shared a batch with whom."""

from typing import Any

import jax
import numpy as np
import pytest
from counting_agent import PARAMS, SPEC, make_counting_agent

from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.requests import make_request

FIRST, MID, LAST = 0, 1, 2


def make_engine(num_slots=5, length=3, *, stores=False, max_policy_lag=np.inf, max_batch=256):
    return Engine(
        make_counting_agent(stores=stores),
        SPEC,
        PARAMS,
        seed=0,
        num_slots=num_slots,
        unroll_length=length,
        max_policy_lag=max_policy_lag,
        max_batch=max_batch,
    )


class Stream:
    """One environment: its timesteps number themselves, and note the actions that they got."""

    def __init__(self, slot, rng):
        self.slot, self._rng, self.rows, self.actions = slot, rng, [], []

    def next(self):
        previous = self.rows[-1][0] if self.rows else LAST
        step = FIRST if previous == LAST else int(self._rng.choice([MID, MID, MID, LAST]))
        self.rows.append((step, len(self.rows)))
        return self.rows[-1]


def send(engine, streams):
    slot = np.array([stream.slot for stream in streams], np.int32)
    rows = [stream.next() for stream in streams]
    step_type = np.array([step for step, _ in rows], np.int8)
    number = np.array([number for _, number in rows])
    observation = np.stack([number, 10 * slot], -1).astype(np.int32)

    def answer(actions):
        for stream, action in zip(streams, actions, strict=True):
            stream.actions.append(int(action))

    reward, discount = number.astype(np.float32), (step_type != LAST).astype(np.float32)
    request = make_request(slot, step_type, reward, discount, (observation,), answer)
    assert engine.check(request) is None
    engine.add(request)


def answer_all(engine):
    while answers := engine.step():
        for request, actions in answers:
            request.answer(actions)


def test_unrolls_are_the_streams():
    rng = np.random.default_rng(1)
    engine = make_engine()
    slots, seeds = engine.open_slots(5) or pytest.fail("no slots")
    assert len(set(seeds.tolist())) == 5
    streams = [Stream(slot, rng) for slot in slots.tolist()]
    taken = {slot: [] for slot in slots.tolist()}
    for _ in range(80):
        order = rng.permutation(5)[: rng.integers(1, 6)]
        cut = int(rng.integers(0, len(order) + 1))
        for part in (order[:cut], order[cut:]):
            if len(part):
                send(engine, [streams[place] for place in part])
        answer_all(engine)
        if (found := engine.take(0.0)) is not None:
            trajectory = jax.tree.map(np.asarray, found.trajectory)
            for column, slot in enumerate(found.slot.tolist()):
                taken[slot].append(jax.tree.map(lambda x, c=column: x[c], _columns_first(trajectory)))
    assert sum(map(len, taken.values())) >= 40
    for stream in streams:
        steps, numbers = (np.array(values) for values in zip(*stream.rows, strict=True))
        first_rows = np.maximum.accumulate(np.where(steps == FIRST, numbers, 0))
        counts = numbers - first_rows + 1
        assert stream.actions == (counts + 100).tolist()
        for place, unroll in enumerate(taken[stream.slot]):
            rows = slice(3 * place, 3 * place + 4)
            acted = slice(3 * place, 3 * place + 3)
            np.testing.assert_array_equal(unroll.timestep.step_type, steps[rows])
            np.testing.assert_array_equal(unroll.timestep.reward, numbers[rows])
            np.testing.assert_array_equal(unroll.timestep.observation[:, 0], numbers[rows])
            np.testing.assert_array_equal(unroll.timestep.observation[:, 1], 10 * stream.slot)
            np.testing.assert_array_equal(unroll.action, counts[acted] + 100)
            np.testing.assert_array_equal(unroll.actor_output["slot"], stream.slot)
            assert unroll.recurrent.core == (counts[3 * place - 1] if place else 0)
            assert unroll.continues == (place > 0)


def _columns_first(trajectory):
    moved = jax.tree.map(
        lambda x: np.swapaxes(x, 0, 1), trajectory._replace(recurrent=(), slot=(), continues=())
    )
    return moved._replace(
        recurrent=trajectory.recurrent, slot=trajectory.slot, continues=trajectory.continues
    )


def test_a_replay_gets_rounds_of_different_slots_and_an_update_for_as_many_unrolls_as_slots():
    engine = make_engine(num_slots=4, length=1, stores=True)
    slots, _ = engine.open_slots(2) or pytest.fail("no slots")
    streams = [Stream(slot, np.random.default_rng(0)) for slot in slots.tolist()]
    rounds = []
    for _ in range(12):
        send(engine, streams)
        answer_all(engine)
        while (found := engine.take(0.0)) is not None:
            assert len(set(found.slot.tolist())) == len(found.slot)
            rounds.append((len(found.slot), found.is_due))
            padding = np.asarray(found.trajectory.slot)[len(found.slot) :]
            assert (padding == 4).all()
            assert (np.asarray(found.trajectory.timestep.step_type)[:, len(found.slot) :] == FIRST).all()
    assert [is_due for _, is_due in rounds] == [False, True] * 5
    assert {count for count, _ in rounds} == {2}


def test_a_reader_of_new_parameters_is_every_later_step():
    engine = make_engine(num_slots=1, length=2)
    (slot,), _ = engine.open_slots(1) or pytest.fail("no slots")
    stream = Stream(int(slot), np.random.default_rng(3))
    send(engine, [stream])
    answer_all(engine)
    engine.publish(PARAMS._replace(network=np.int32(500)), np.zeros(0, np.int32))
    send(engine, [stream])
    answer_all(engine)
    assert [action // 100 for action in stream.actions] == [1, 5]


def test_inference_waits_for_a_slow_learner_and_says_how_long():
    engine = make_engine(num_slots=2, length=1)
    slots, _ = engine.open_slots(2) or pytest.fail("no slots")
    streams = [Stream(slot, np.random.default_rng(0)) for slot in slots.tolist()]
    num_answered = 0
    while True:
        send(engine, streams)
        answers = engine.step()
        if not answers:
            break
        num_answered += 1
        assert num_answered < 50  # the unrolls would grow without bound
    assert engine.figures()["inference_wait_s"] >= 0.0
    assert engine.take(0.0) is not None
    assert len(engine.step()) == 1


def test_the_learner_waits_for_unrolls_and_says_how_long():
    engine = make_engine(num_slots=2, length=3)
    assert engine.take(0.05) is None
    assert 0.05 <= engine.figures()["learner_wait_s"] < 1.0
    assert engine.figures()["learner_wait_s"] == 0.0


def test_a_call_takes_what_fits_and_the_rest_is_next():
    engine = make_engine(num_slots=20, length=3, max_batch=8)
    slots, _ = engine.open_slots(20) or pytest.fail("no slots")
    streams = [Stream(slot, np.random.default_rng(0)) for slot in slots.tolist()]
    for part in (streams[:5], streams[5:13], streams[13:16], streams[16:]):
        send(engine, part)
    calls = []
    while answers := engine.step():
        calls.append([len(actions) for _, actions in answers])
    assert calls == [[5, 3], [8], [4]]


def test_a_lost_actors_slot_starts_fresh():
    engine = make_engine(num_slots=2, length=4)
    slots, seeds = engine.open_slots(2) or pytest.fail("no slots")
    rng = np.random.default_rng(0)
    for _ in range(2):
        stream = Stream(int(slots[0]), rng)
        for _ in range(2):
            send(engine, [stream])
            answer_all(engine)
            if stream.rows[-1][0] == FIRST:
                assert stream.actions[-1] == 101
        engine.close_slots(slots[:1])
        again, new_seeds = engine.open_slots(1) or pytest.fail("no slots")
        assert again.tolist() == slots[:1].tolist()
        assert new_seeds[0] != seeds[0]
        assert int(engine._tables.agent.recurrent.core[0]) == 0
        seeds = new_seeds
    assert engine.figures()["dropped_steps"] == 4


def test_requests_of_a_lost_actor_are_forgotten():
    engine = make_engine(num_slots=2)
    slots, _ = engine.open_slots(2) or pytest.fail("no slots")
    streams = [Stream(slot, np.random.default_rng(0)) for slot in slots.tolist()]
    send(engine, streams[:1])
    with pytest.raises(AssertionError):
        send(engine, streams[:1])  # the first has no answer yet
    send(engine, streams[1:])
    engine.close_slots(slots[:1])
    assert [request.slot.tolist() for request, _ in engine.step()] == [[1]]


def test_more_actors_compile_nothing_new():
    engine = make_engine(num_slots=32, length=2, max_batch=16)
    engine.warm_up()
    programs: list[Any] = [engine._step, engine._gather, engine._open]
    before = [program._cache_size() for program in programs]
    streams = []
    for _ in range(16):
        slots, _ = engine.open_slots(2) or pytest.fail("no slots")
        streams += [Stream(slot, np.random.default_rng(0)) for slot in slots.tolist()]
        for begin in range(0, len(streams), 8):
            send(engine, streams[begin : begin + 8])
        answer_all(engine)
        if (found := engine.take(0.0)) is not None:
            engine.publish(PARAMS, found.slot)
    assert all(len(stream.actions) == len(stream.rows) for stream in streams)
    assert [program._cache_size() for program in programs] == before


def test_a_step_writes_its_tables_in_place():
    engine = make_engine(num_slots=64, length=200)
    batch = engine._batches[0]
    compiled: Any = engine._step.lower(engine._leaves, engine._params, batch.words, batch.leaves).compile()
    tables = sum(leaf.nbytes for leaf in jax.tree.leaves(engine._tables))
    memory: Any = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= tables
    assert memory.temp_size_in_bytes < tables / 10


def test_the_copy_that_goes_up_is_aligned_and_single():
    engine = make_engine(num_slots=20)
    for batch in engine._batches:
        for leaf in jax.tree.leaves((batch.words, batch.observation)):
            assert leaf.ctypes.data % 64 == 0
            assert leaf.flags.writeable


@pytest.mark.parametrize("count", [3, 6])
def test_slots_are_refused_when_there_are_not_so_many(count):
    engine = make_engine(num_slots=5)
    assert engine.open_slots(3) is not None
    assert engine.open_slots(count) is None


@pytest.mark.parametrize("max_policy_lag", [0, 1])
def test_actors_come_and_go_under_a_bound_and_nothing_stops(max_policy_lag):
    rng = np.random.default_rng(2)
    engine = make_engine(num_slots=6, length=3, max_policy_lag=max_policy_lag)
    actors: list[list[Stream]] = []
    num_updates, idle = 0, 0
    while num_updates < 60:
        chance = rng.random()
        if chance < 0.1 and engine.num_free >= 2:
            slots, _ = engine.open_slots(2) or pytest.fail("no slots")
            actors.append([Stream(slot, rng) for slot in slots.tolist()])
            send(engine, actors[-1])
        elif chance < 0.13 and actors:
            gone = actors.pop(int(rng.integers(len(actors))))
            engine.close_slots(np.array([stream.slot for stream in gone], np.int32))
        idle += 1
        while answers := engine.step():
            for request, actions in answers:
                idle = 0
                request.answer(actions)
        for streams in actors:
            if all(len(stream.actions) == len(stream.rows) for stream in streams):
                if rng.random() < 0.05:  # one environment of two begins anew: out of phase from here on
                    streams[0].rows.append((LAST, 0))
                    streams[0].actions.append(0)
                    engine._slots._has_ended[streams[0].slot] = False
                send(engine, streams)
        if (found := engine.take(0.0)) is not None:
            engine.publish(PARAMS, found.slot)
            num_updates, idle = num_updates + 1, 0
        assert idle < 200
