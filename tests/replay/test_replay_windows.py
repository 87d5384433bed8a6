"""Rings that fill and wrap around, against a slow model of all that was ever written."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ring_model import RingModel
from streams import NUM_SLOTS, NUM_TIMES, Streams

from zerocopy_envs.types import StepType
from zerocopy_seed import replay as replays
from zerocopy_seed.recurrent import stack_frames_unroll
from zerocopy_seed.replay import sum_tree
from zerocopy_seed.replay_layout import Layout

SAMPLES_PER_SHARD = 32
NUM_PADDED = 3  # columns of an insert

# unroll length, window length, period, context, starts; shards; a core; an action mask
CASES = {
    "period below T": (Layout(4, 6, 2, 0, 9), 1, False, False),
    "period T, short windows": (Layout(4, 3, 4, 3, 4), 2, True, True),
    "period 2 T": (Layout(3, 8, 6, 3, 4), 2, True, False),
    "one step, as DQN": (Layout(6, 2, 1, 3, 14), 1, False, False),
    "period T, long windows": (Layout(3, 7, 3, 2, 5), 4, True, True),
}


def make_empty(layout, streams, with_core, num_shards):
    row = replays.Rows(
        *jax.tree.map(lambda x: x[0, 0], (streams.timestep, streams.last_action, streams.actor_output))
    )
    core = jax.ShapeDtypeStruct((), jnp.int32) if with_core else ()
    make = functools.partial(
        replays.make_replay, layout, row, core, num_slots=NUM_SLOTS, num_shards=num_shards
    )
    # It is all zeros; made by NumPy, nothing compiles.
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(make))


def initial_mass(windows):
    """Tells windows apart by what is in their first row."""
    return 1.0 + (windows.timestep.reward[0] - 1.25) % 7.0


def assert_columns_are(found, columns, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:, columns], b), found, wanted)


@pytest.mark.parametrize("case", CASES)
def test_only_whole_windows_are_drawn_and_each_is_one_piece_of_one_slot(case):
    layout, num_shards, with_core, with_mask = CASES[case]
    streams = Streams(layout.context, with_mask)
    context, length, unroll_length = layout.context, layout.window_length, layout.unroll_length

    @jax.jit
    def insert_and_sample(replay, trajectory, uniforms):
        replay = replays.insert(layout, replay, trajectory, trajectory.slot, initial_mass)
        draw, windows = replays.sample(layout, replay, uniforms, num_shards=num_shards)
        first = windows.timestep.step_type == StepType.FIRST
        stacked = stack_frames_unroll(windows.recurrent.frames, windows.timestep.observation, first)
        return replay, draw, windows, stacked

    set_masses = jax.jit(replays.set_masses)
    replay = make_empty(layout, streams, with_core, num_shards)
    model = RingModel(layout, NUM_SLOTS)
    rng = np.random.default_rng(3)
    now = rng.integers(0, 50, NUM_SLOTS)
    draws, num_windows, stale, just_there = [], 0, 0, 0
    num_inserts = 7 * NUM_SLOTS * layout.ring_length // unroll_length // 2
    for insert in range(num_inserts):
        # Some slots in any order, padded by others; at first slot 0 alone, so that other shards are empty.
        slot = rng.permutation(NUM_SLOTS + 2)[:NUM_PADDED]
        slot = np.where(slot < NUM_SLOTS, slot, NUM_SLOTS + 1)
        if insert < 6:
            slot = np.array([NUM_SLOTS, 0, 2**31 - 1])
        continues = rng.random(NUM_PADDED) > 0.08
        for column, one in enumerate(slot):
            if one < NUM_SLOTS and not continues[column]:
                now[one] += rng.integers(1, 5)
                wants_first = rng.random() < 0.5
                while streams.first[now[one], one] != wants_first:
                    now[one] += 1
        begin = now[np.minimum(slot, NUM_SLOTS - 1)]
        trajectory = streams.unrolls(slot, begin, unroll_length, continues)
        trajectory = trajectory._replace(
            recurrent=trajectory.recurrent._replace(core=trajectory.recurrent.core if with_core else ())
        )
        for one, time, goes_on in zip(slot, begin, continues, strict=True):
            if one < NUM_SLOTS:
                model.insert(
                    one, time, goes_on, streams.first[time, one],
                    lambda time, one=one: 1.0 + (10_000 * one + time) % 7,
                )  # fmt: skip
                now[one] += unroll_length
        assert now.max() < NUM_TIMES - 50

        uniforms = rng.random((num_shards, SAMPLES_PER_SHARD, replays.num_uniforms(replay)), np.float32)
        replay, draw, windows, stacked = jax.tree.map(
            np.asarray, insert_and_sample(replay, trajectory, uniforms)
        )
        expected = model.leaves()
        num_leaves = sum_tree.leaves_per_shard(replay.masses)
        per_shard = np.zeros((num_shards, num_leaves), np.float32)
        per_shard[:, : expected.size // num_shards] = expected.reshape(num_shards, -1)
        np.testing.assert_array_equal(replay.masses[-1].reshape(num_shards, -1), per_shard)
        np.testing.assert_array_equal(replay.completed, np.minimum(model.completed, layout.starts))

        # What was drawn: shard by shard, never without mass, with its probability; nothing of an empty shard.
        shard = np.repeat(np.arange(num_shards), SAMPLES_PER_SHARD)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((draw, windows.timestep.reward)))
        total = per_shard.sum(-1)
        drawn = total[shard] > 0
        mass = per_shard[shard, draw.index % num_leaves]
        assert (mass[drawn] > 0).all() and (draw.slot[drawn] * num_shards // NUM_SLOTS == shard[drawn]).all()
        probability = np.where(drawn, mass / np.where(drawn, total[shard], 1.0) / num_shards, 0.0)
        np.testing.assert_allclose(draw.probability, probability, rtol=1e-6)
        num_windows += drawn.sum()

        # One contiguous piece of one slot, all fields of it.
        start = draw.index % num_leaves % layout.starts
        drawn = np.flatnonzero(drawn)
        slots = draw.slot[drawn]
        begins = [model.times[one][model.row_of(one, s)] for one, s in zip(slots, start[drawn], strict=True)]
        rows = np.array(begins, int) + np.arange(length + 1)[:, None]
        columns = np.broadcast_to(slots, rows.shape)
        found = (windows.timestep, windows.actor_output, windows.action)
        wanted = streams.at((streams.timestep, streams.actor_output), rows, columns)
        wanted = (*wanted, streams.last_action[rows[1:], columns[1:]])
        assert_columns_are(found, drawn, wanted)
        entering = windows.recurrent.last_action[drawn]
        np.testing.assert_array_equal(entering, streams.last_action[rows[0], slots])
        if with_core:
            np.testing.assert_array_equal(windows.recurrent.core[drawn], streams.core[rows[0], slots])
        if context:
            wanted = streams.at(streams.stacked, rows, columns)
            assert_columns_are(stacked, drawn, wanted)
        else:
            assert windows.recurrent.frames == ()

        # New masses for windows of a while ago: those still there take them, some of them 0.
        draws.append((draw, [len(model.times[one]) for one in draw.slot], start))
        if insert % 2:
            old, written, start = draws[max(0, insert - rng.integers(0, 2 * layout.ring_length))]
            new_mass = np.where(old.index % 5 == 0, 0.0, 8 + old.index % 6 + insert / 256).astype(np.float32)
            where = old.index % 7 != 3
            replay = set_masses(replay, old, new_mass, where)
            for i, one in enumerate(old.slot):
                if old.probability[i] > 0 and where[i]:
                    place = start[i] * layout.period
                    row = (written[i] - 1 - place) // layout.ring_length * layout.ring_length + place
                    room = row - context - (len(model.times[one]) - layout.ring_length)
                    assert (row in model.mass[one]) == (room >= 0)
                    stale, just_there = stale + (room < 0), just_there + (room == 0)
                    if room >= 0:
                        model.mass[one][row] = new_mass[i]
    assert min(model.completed) > 2 * layout.starts or layout.period > unroll_length
    assert num_windows > 1000 and stale > 100
    assert just_there > 0 or context % layout.period


def test_a_ring_that_is_never_full_by_one():
    # Ten rows: the last waits for the row after it, so nine windows of one transition at most.
    layout = Layout(unroll_length=2, window_length=1, period=1, context=0, min_starts=10)
    streams = Streams(0, False)
    assert (layout.ring_length, layout.starts) == (10, 10)
    replay = make_empty(layout, streams, False, 1)
    insert = jax.jit(
        lambda replay, unrolls: replays.insert(layout, replay, unrolls, unrolls.slot, initial_mass)
    )
    found = []
    for time in range(0, 22, 2):
        unrolls = streams.unrolls(np.array([1]), np.array([time]), 2, [time > 0])
        unrolls = unrolls._replace(recurrent=unrolls.recurrent._replace(core=()))
        replay = insert(replay, unrolls)
        found.append(np.count_nonzero(replay.masses[-1]))
    assert found == [1, 3, 5, 7, 9, 9, 9, 9, 9, 9, 9]
    np.testing.assert_array_equal(replay.completed, [0, 10, 0, 0])


@pytest.mark.parametrize(
    ("layout", "with_core"),
    [
        (Layout(4, 6, 3, 0, 9), False),
        (Layout(4, 6, 2, 0, 9), True),
        (Layout(4, 40, 4, 0, 9), False),
        (Layout(6, 4, 4, 0, 9), False),
        (Layout(4, 4, 4, 28, 9), False),
    ],
)
def test_rows_that_do_not_fit_are_refused(layout, with_core):
    with pytest.raises(ValueError, match="expected"):
        make_empty(layout, Streams(0, False), with_core, 1)
