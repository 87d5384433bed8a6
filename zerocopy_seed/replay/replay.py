"""Rings of rows, windows over them, and the masses by which windows are drawn.

A row is a timestep, the action that led to it, and what the behaviour policy said there: so each step is
stored once, and a window's actions are read from the rows after them. All arrays have a leading axis of slots
(or of shards, a block of slots each), which may be spread over devices. The empty replay is all zeros.

Whatever is read is read after all that is written, else XLA copies the rings (a donated ring is written in
place).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from zerocopy_envs.types import StepType, TimeStep
from zerocopy_seed.replay import sum_tree
from zerocopy_seed.replay.layout import Layout
from zerocopy_seed.replay.sum_tree import SumTree
from zerocopy_seed.types import Array, RecurrentState, Trajectory

MAX_COUNTED = 2**30


class Rows(NamedTuple):
    """Leaves [slots, ring_length, ...]: a timestep, the action before it, the policy's word on it."""

    timestep: TimeStep
    last_action: Array
    actor_output: Any


class Replay(NamedTuple):
    """See the module.

    Attributes:
      rows: the rings.
      core: [slots, starts, ...] recurrent core entering each start; () without a core.
      cursor: [slots] int32, the ring's row to write next.
      run: [slots] int32, rows before the cursor without a gap between them; at most ring_length.
      written: [slots] uint32, rows ever written, modulo 2^32.
      completed: [slots] int32, windows ever whole; at most 2^30.
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
      ValueError: rows that do not fit each other; starts at which no unroll begins, where there is a core.
    """
    layout.check()
    if jax.tree.leaves(core) and layout.period % layout.unroll_length:
        raise ValueError(
            f"period {layout.period}: expected a multiple of {layout.unroll_length}, with a core"
        )

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
    initial_mass: Callable[[Trajectory], Array],
) -> Replay:
    """Writes unrolls behind the cursors of their slots.

    The windows that they overwrite can no longer be drawn; the windows that they make whole can. A window is
    whole once the row after its last transition is there, which is the next unroll's first.

    Args:
      layout: the replay's.
      replay: what is written to.
      trajectory: [T, B]. Row T is not stored: it is row 0 of what follows.
      slot: [B] int32, each at most once; a number past the last slot is not stored.
      initial_mass: windows [window_length, n], of which only what it uses is read -> masses [n] float32.
    """
    num_slots, length = replay.cursor.shape[0], layout.unroll_length
    inside = slot < num_slots
    nearest = jnp.minimum(slot, num_slots - 1)
    cursor = replay.cursor[nearest]

    # Frames before an episode's FIRST are not looked at, so there the context need not be in the ring.
    begins = trajectory.timestep.step_type[0] == StepType.FIRST
    run = jnp.where(trajectory.continues, replay.run[nearest], jnp.where(begins, layout.context, 0))
    run = jnp.minimum(run + length, layout.ring_length)

    replay = replay._replace(
        rows=_write_rows(layout, replay.rows, trajectory, slot, cursor),
        core=_write_core(layout, replay.core, trajectory.recurrent.core, inside, nearest, cursor),
        cursor=replay.cursor.at[slot].set((cursor + length) % layout.ring_length, mode="drop"),
        run=replay.run.at[slot].set(run, mode="drop"),
        written=replay.written.at[slot].add(jnp.uint32(length), mode="drop"),
    )

    # From here on a row for each start, a column for each unroll.
    cursor, run, inside, nearest = (x[None] for x in (cursor, run, inside, nearest))

    def count(number: int) -> Array:
        return jnp.arange(number, dtype=jnp.int32)[:, None]

    def is_whole(behind: Array) -> Array:
        return inside & (behind > layout.window_length) & (behind + layout.context <= run)

    overwritten = -(-cursor // layout.period) + count(layout.overwritten_per_insert)
    behind = cursor + length - overwritten * layout.period
    # A short window may be whole again where its forerunner was overwritten: a start is set only once.
    gone = inside & (behind + layout.context > 0) & ~is_whole(behind)

    # Rows counted from a ring's length before the ring, so that nothing is negative.
    end = cursor + length + layout.ring_length
    newest = (end - 1 - layout.window_length) // layout.period
    completed = newest - count(layout.completed_per_insert)
    behind = end - completed * layout.period
    whole = is_whole(behind) & (behind <= layout.window_length + length)
    start = completed % layout.starts
    slots = jnp.broadcast_to(nearest, start.shape)
    windows = _read_windows(layout, replay, slots.reshape(-1), start.reshape(-1))
    mass = jnp.where(whole, initial_mass(windows).reshape(start.shape), 0.0)

    leaf = _leaf(layout, replay, nearest, jnp.concatenate([overwritten % layout.starts, start]))
    index = jnp.where(jnp.concatenate([gone, whole]), leaf, replay.masses[-1].size)
    mass = jnp.concatenate([jnp.zeros(gone.shape), mass])
    num_completed = replay.completed.at[slot].add(whole.sum(0, dtype=jnp.int32), mode="drop")
    return replay._replace(
        completed=jnp.minimum(num_completed, MAX_COUNTED),
        masses=sum_tree.set_masses(replay.masses, index.reshape(-1), mass.reshape(-1)),
    )


def num_uniforms(replay: Replay) -> int:
    """Uniform numbers that drawing one window takes."""
    return sum_tree.num_draws(replay.masses)


def sample(layout: Layout, replay: Replay, uniforms: Array, *, num_shards: int) -> tuple[Draw, Trajectory]:
    """Draws windows in proportion to their masses, the same number from every shard.

    Args:
      layout: the replay's.
      replay: what is drawn from.
      uniforms: [shards here, n, num_uniforms] float32 in [0, 1).
      num_shards: of all devices together.

    Returns:
      What was drawn, [shards here * n], and the windows, [window_length, shards here * n]: `recurrent` enters
      their first row, with `continues` True.
    """
    totals = sum_tree.total_mass(replay.masses)
    index = sum_tree.sample(replay.masses, uniforms).reshape(-1)
    total = jnp.repeat(totals, uniforms.shape[1])
    probability = sum_tree.masses(replay.masses, index) / jnp.where(total > 0.0, total, 1.0) / num_shards
    slot, start = _place(layout, replay, index)
    behind = (replay.cursor[slot] - start * layout.period - 1) % layout.ring_length + 1
    room = jnp.maximum(layout.ring_length - behind - layout.context, 0).astype(jnp.uint32)
    draw = Draw(index, probability, slot, replay.written[slot], room)
    return draw, _read_windows(layout, replay, slot, start)


def set_masses(replay: Replay, draw: Draw, mass: Array, where: Array | bool = True) -> Replay:
    """Gives drawn windows new masses [n] float32; those overwritten since then stay as they are.

    Args:
      replay: the one drawn from, or a later one.
      draw: from `sample`.
      mass: [n] float32, not negative.
      where: [n] or scalar bool; False leaves a mass as it is.
    """
    present = replay.written[draw.slot] - draw.written <= draw.room
    index = jnp.where(present & (draw.probability > 0.0) & where, draw.index, replay.masses[-1].size)
    return replay._replace(masses=sum_tree.set_masses(replay.masses, index, mass))


def _write_rows(layout: Layout, rows: Rows, trajectory: Trajectory, slot: Array, cursor: Array) -> Rows:
    length = layout.unroll_length
    unrolls_per_slot = layout.ring_length // length
    # A cursor is a multiple of T, so an unroll goes to one place; out of bounds past the last slot.
    place = slot * unrolls_per_slot + cursor // length
    before = jnp.concatenate([trajectory.recurrent.last_action[None], trajectory.action[:-1]])
    timestep = jax.tree.map(lambda x: x[:-1], trajectory.timestep)

    def write(ring: Array, unrolls: Array) -> Array:
        blocks = ring.reshape(-1, length, *ring.shape[2:])
        return blocks.at[place].set(jnp.swapaxes(unrolls, 0, 1), mode="drop").reshape(ring.shape)

    return jax.tree.map(write, rows, Rows(timestep, before, trajectory.actor_output))


def _write_core(layout: Layout, stored: Any, core: Any, inside: Array, nearest: Array, cursor: Array) -> Any:
    at_start = inside & (cursor % layout.period == 0)

    def write(stored: Array, entering: Array) -> Array:
        flat = stored.reshape(-1, *stored.shape[2:])
        place = jnp.where(at_start, nearest * layout.starts + cursor // layout.period, flat.shape[0])
        return flat.at[place].set(entering, mode="drop").reshape(stored.shape)

    return jax.tree.map(write, stored, core)


def _read_windows(layout: Layout, replay: Replay, slot: Array, start: Array) -> Trajectory:
    """The windows at `start` [n] (counted in periods) of `slot` [n].

    `actor_output` has the row [window_length] too, since what was said there bootstraps.
    """
    context, length = layout.context, layout.window_length
    offsets = jnp.arange(-context, length + 1, dtype=jnp.int32)[:, None]
    row = (start[None] * layout.period + offsets) % layout.ring_length
    place = slot[None] * layout.ring_length + row

    def read(ring: Array) -> Array:
        flat = ring.reshape(-1, *ring.shape[2:])
        return flat.at[place].get(mode="promise_in_bounds")

    rows = jax.tree.map(read, replay.rows)
    timestep, last_action, actor_output = jax.tree.map(lambda x: x[context:], rows)
    core = jax.tree.map(
        lambda stored: stored.reshape(-1, *stored.shape[2:])[slot * layout.starts + start], replay.core
    )
    frames: Any = ()
    if context:
        frames = _frames(rows.timestep, context)
    return Trajectory(
        timestep=timestep,
        action=last_action[1:],
        actor_output=actor_output,
        recurrent=RecurrentState(core, frames, last_action[0]),
        slot=slot,
        continues=jnp.ones(slot.shape, bool),
    )


def _frames(timestep: TimeStep, context: int) -> Any:
    """The frames before row `context`, [n, context, ...]; zeros before the episode that reaches up to it."""
    first = timestep.step_type[:context] == StepType.FIRST
    # whether an episode begins between a row (exclusive) and the window
    later = jnp.flip(jnp.cumsum(jnp.flip(first.astype(jnp.int32), 0), 0), 0) - first
    observation = timestep.observation
    if isinstance(observation, dict):
        observation = {name: leaf for name, leaf in observation.items() if name != "action_mask"}

    def visible(x: Array) -> Array:
        seen = (later == 0).reshape(later.shape + (1,) * (x.ndim - 2))
        return jnp.moveaxis(jnp.where(seen, x[:context], jnp.zeros((), x.dtype)), 0, 1)

    return jax.tree.map(visible, observation)


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
