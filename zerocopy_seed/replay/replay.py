"""Which windows of the rings may be drawn, and with what mass.

All arrays have a leading axis of slots (or of shards, a block of slots each), which may be spread over
devices. The empty replay is all zeros.

Whatever is read is read after all that is written, else XLA copies the rings (a donated ring is written in
place).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from zerocopy_envs.types import StepType
from zerocopy_seed.replay import sum_tree
from zerocopy_seed.replay.ring import Rows, Windows, read_windows, write_core, write_rows
from zerocopy_seed.replay.sum_tree import SumTree
from zerocopy_seed.replay_layout import Layout
from zerocopy_seed.types import Array, Trajectory


class Replay(NamedTuple):
    """See the module.

    Attributes:
      rows: the rings.
      core: [slots, starts, ...] recurrent core entering each start; () without a core.
      cursor: [slots] int32, the ring's row to write next.
      run: [slots] int32, rows before the cursor without a gap between them; at most ring_length.
      written: [slots] uint32, rows ever written, modulo 2^32.
      completed: [slots] int32, windows that were ever whole; at most all starts.
      masses: of all starts; 0 where no window can be drawn.
    """

    rows: Rows
    core: Any
    cursor: Array
    run: Array
    written: Array
    completed: Array
    masses: SumTree


class Draw(NamedTuple):
    """Which windows were drawn, [n], and what tells later whether they are still there.

    Attributes:
      index: int32, leaf of the sum tree.
      probability: float32, of all shards together; 0 where a shard had nothing to draw.
      slot: int32.
      written: uint32, the slot's rows written by then.
      room: uint32, rows that can be written before the window is overwritten.
    """

    index: Array
    probability: Array
    slot: Array
    written: Array
    room: Array


def make_replay(layout: Layout, row: Rows, core: Any, *, num_slots: int, num_shards: int) -> Replay:
    """An empty replay.

    Args:
      layout: its static shape.
      row: one row's arrays, or their `jax.ShapeDtypeStruct`, without leading axes.
      core: one slot's recurrent core likewise; ().
      num_slots: a multiple of num_shards.
      num_shards: blocks of slots drawn from apart.

    Raises:
      ValueError: a ring too short; starts at which no unroll begins, where there is a core.
    """
    if not (layout.stores_core if jax.tree.leaves(core) else layout.period_fits):
        raise ValueError(
            f"period {layout.period}: expected a multiple of {layout.unroll_length}, "
            "or without a core a divisor"
        )
    if layout.ring_length < layout.least_ring_length:
        raise ValueError(f"ring of {layout.ring_length} rows: expected {layout.least_ring_length} at least")

    def zeros(*leading: int) -> Callable[[Any], Array]:
        return lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype)

    return Replay(
        rows=jax.tree.map(zeros(num_slots, layout.ring_length), row),
        core=jax.tree.map(zeros(num_slots, layout.starts), core),
        cursor=jnp.zeros([num_slots], jnp.int32),
        run=jnp.zeros([num_slots], jnp.int32),
        written=jnp.zeros([num_slots], jnp.uint32),
        completed=jnp.zeros([num_slots], jnp.int32),
        masses=sum_tree.make_sum_tree(num_slots // num_shards * layout.starts, num_shards),
    )


def insert(
    layout: Layout,
    replay: Replay,
    trajectory: Trajectory,
    slot: Array,
    initial_mass: Callable[[Windows], Array],
) -> Replay:
    """Writes unrolls behind the cursors of their slots.

    The windows that they overwrite can no longer be drawn; the windows that they make whole can. A window is
    whole once the row after its last transition is there, which is the next unroll's first.

    Args:
      layout: the replay's.
      replay: what is written to.
      trajectory: [T, B]. Row T is not stored: it is row 0 of what follows.
      slot: [B] int32, each at most once; a number past the last slot is not stored.
      initial_mass: n windows, of which only what it uses is read -> masses [n] float32.
    """
    num_slots, length = replay.cursor.shape[0], layout.unroll_length
    is_stored = slot < num_slots
    slot = jnp.minimum(slot, num_slots)  # else places of large numbers overflow into the rings
    clipped_slot = jnp.minimum(slot, num_slots - 1)
    cursor = replay.cursor[clipped_slot]
    end = cursor + length

    # Frames before an episode's FIRST are not looked at, so there the context need not be in the ring.
    begins = trajectory.timestep.step_type[0] == StepType.FIRST
    run = jnp.where(trajectory.continues, replay.run[clipped_slot], jnp.where(begins, layout.context, 0))
    run = jnp.minimum(run + length, layout.ring_length)

    replay = replay._replace(
        rows=write_rows(layout, replay.rows, trajectory, slot, cursor),
        core=write_core(layout, replay.core, trajectory.recurrent.core, slot, cursor),
        cursor=replay.cursor.at[slot].set(end % layout.ring_length, mode="drop"),
        run=replay.run.at[slot].set(run, mode="drop"),
        written=replay.written.at[slot].add(jnp.uint32(length), mode="drop"),
    )

    # From here on a row for each start, a column for each unroll. Starts are counted in periods.
    rows = (cursor, end, run, is_stored, clipped_slot)
    cursor, end, run, is_stored, clipped_slot = (x[None] for x in rows)

    def count(number: int) -> Array:
        return jnp.arange(number, dtype=jnp.int32)[:, None]

    oldest = -(-cursor // layout.period) + count(layout.overwritten_per_insert)
    is_overwritten = is_stored & (oldest * layout.period - layout.context < end)

    newest = (end - 1 - layout.window_length) // layout.period - count(layout.completed_per_insert)
    age = end - newest * layout.period  # rows from the start to the cursor
    is_new = (age > layout.window_length) & (age <= layout.window_length + length)
    is_whole = is_stored & is_new & (age + layout.context <= run)
    start = newest % layout.starts
    slots = jnp.broadcast_to(clipped_slot, start.shape)
    windows = read_windows(layout, replay.rows, replay.core, slots.reshape(-1), start.reshape(-1))
    mass = jnp.where(is_whole, initial_mass(windows).reshape(start.shape), 0.0)

    # A short window may be whole again where its forerunner was overwritten: the larger mass counts.
    leaf = _leaf(layout, replay, clipped_slot, jnp.concatenate([oldest % layout.starts, start]))
    index = jnp.where(jnp.concatenate([is_overwritten, is_whole]), leaf, replay.masses[-1].size)
    mass = jnp.concatenate([jnp.zeros(oldest.shape), mass])
    completed = replay.completed.at[slot].add(is_whole.sum(0, dtype=jnp.int32), mode="drop")
    return replay._replace(
        completed=jnp.minimum(completed, layout.starts),
        masses=sum_tree.set_masses(replay.masses, index.reshape(-1), mass.reshape(-1)),
    )


def num_uniforms(replay: Replay) -> int:
    """Uniform numbers that drawing one window takes."""
    return sum_tree.num_draws(replay.masses)


def sample(layout: Layout, replay: Replay, uniforms: Array, *, num_shards: int) -> tuple[Draw, Windows]:
    """Draws windows in proportion to their masses, the same number from every shard.

    Args:
      layout: the replay's.
      replay: what is drawn from.
      uniforms: [shards here, n, num_uniforms] float32 in [0, 1).
      num_shards: of all devices together.

    Returns:
      What was drawn, [shards here * n], and the windows.
    """
    totals = sum_tree.total_mass(replay.masses)
    # Sorted, since XLA would compute unsorted draws anew for every row that is read.
    index = jnp.sort(sum_tree.sample(replay.masses, uniforms), axis=-1).reshape(-1)
    total = jnp.repeat(totals, uniforms.shape[1])
    probability = sum_tree.masses(replay.masses, index) / jnp.where(total > 0.0, total, 1.0) / num_shards
    slot, start = _place(layout, replay, index)
    age = (replay.cursor[slot] - start * layout.period - 1) % layout.ring_length + 1
    room = jnp.maximum(layout.ring_length - age - layout.context, 0).astype(jnp.uint32)
    draw = Draw(index, probability, slot, replay.written[slot], room)
    return draw, read_windows(layout, replay.rows, replay.core, slot, start)


def set_masses(replay: Replay, draw: Draw, mass: Array, where: Array | bool = True) -> Replay:
    """Gives drawn windows new masses [n] float32; those overwritten since then stay as they are.

    Args:
      replay: the one drawn from, or a later one.
      draw: from `sample`. A window that was drawn twice takes the larger mass.
      mass: [n] float32, not negative.
      where: [n] or scalar bool; False leaves a mass as it is.
    """
    is_there = replay.written[draw.slot] - draw.written <= draw.room
    index = jnp.where(is_there & (draw.probability > 0.0) & where, draw.index, replay.masses[-1].size)
    return replay._replace(masses=sum_tree.set_masses(replay.masses, index, mass))


def _leaf(layout: Layout, replay: Replay, slot: Array, start: Array) -> Array:
    """The sum tree's leaf of a start."""
    slots_per_shard = replay.cursor.shape[0] // replay.masses[0].shape[0]
    shard, inner = slot // slots_per_shard, slot % slots_per_shard
    return shard * sum_tree.leaves_per_shard(replay.masses) + inner * layout.starts + start


def _place(layout: Layout, replay: Replay, index: Array) -> tuple[Array, Array]:
    """Slot and start of a leaf; the tree's spare leaves, never drawn, count to the shard's last slot."""
    slots_per_shard = replay.cursor.shape[0] // replay.masses[0].shape[0]
    per_shard = sum_tree.leaves_per_shard(replay.masses)
    shard, inner = index // per_shard, index % per_shard
    slot = jnp.minimum(inner // layout.starts, slots_per_shard - 1)
    return shard * slots_per_shard + slot, inner % layout.starts
