"""Rings of rows, one per slot: unrolls are written to them, windows are read.

A row is a timestep, the action that led to it, and what the behaviour policy said there: so each step is
stored once, and a window's actions are read from the rows after them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from zerocopy_envs.types import StepType, TimeStep
from zerocopy_seed.replay_layout import Layout
from zerocopy_seed.types import Array, RecurrentState, Trajectory, split_action_mask


class Rows(NamedTuple):
    """Leaves [slots, ring_length, ...]: a timestep, the action before it, the policy's word on it."""

    timestep: TimeStep
    last_action: Array
    actor_output: Any


class Windows(NamedTuple):
    """n windows of W transitions, time-major.

    Attributes:
      timestep: [W+1, n, ...].
      action: [W, n].
      actor_output: [W+1, n, ...]; what was said in row W bootstraps.
      recurrent: [n, ...] recurrent state entering row 0.
    """

    timestep: TimeStep
    action: Array
    actor_output: Any
    recurrent: RecurrentState


def write_rows(layout: Layout, rows: Rows, trajectory: Trajectory, slot: Array, cursor: Array) -> Rows:
    """Writes unrolls [T, B], without their row T, to the rows from `cursor` [B] on.

    Args:
      layout: of the rings.
      rows: the rings.
      trajectory: what is written.
      slot: [B] int32, each at most once; past the last slot nothing is written.
      cursor: [B] int32, multiples of T.
    """
    length = layout.unroll_length
    place = slot * (layout.ring_length // length) + cursor // length
    before = jnp.concatenate([trajectory.recurrent.last_action[None], trajectory.action[:-1]])
    timestep = jax.tree.map(lambda x: x[:-1], trajectory.timestep)

    def write(ring: Array, unrolls: Array) -> Array:
        blocks = ring.reshape(-1, length, *ring.shape[2:])
        return blocks.at[place].set(jnp.swapaxes(unrolls, 0, 1), mode="drop").reshape(ring.shape)

    return jax.tree.map(write, rows, Rows(timestep, before, trajectory.actor_output))


def write_core(layout: Layout, stored: Any, core: Any, slot: Array, cursor: Array) -> Any:
    """Stores the core [B, ...] that enters the row at `cursor` [B], where a window may start there.

    Args:
      layout: of the rings.
      stored: [slots, starts, ...].
      core: likewise without starts; or () as `stored`.
      slot: [B] int32, each at most once; past the last slot nothing is written.
      cursor: [B] int32.
    """

    def write(stored: Array, entering: Array) -> Array:
        flat = stored.reshape(-1, *stored.shape[2:])
        place = slot * layout.starts + cursor // layout.period
        place = jnp.where(cursor % layout.period == 0, place, flat.shape[0])
        return flat.at[place].set(entering, mode="drop").reshape(stored.shape)

    return jax.tree.map(write, stored, core)


def read_windows(layout: Layout, rows: Rows, stored: Any, slot: Array, start: Array) -> Windows:
    """The windows at `start` [n] (counted in periods) of `slot` [n], with the core stored there."""
    context, length = layout.context, layout.window_length
    offsets = jnp.arange(-context, length + 1, dtype=jnp.int32)[:, None]
    row = (start[None] * layout.period + offsets) % layout.ring_length
    place = slot[None] * layout.ring_length + row

    def read(ring: Array) -> Array:
        flat = ring.reshape(-1, *ring.shape[2:])
        return flat.at[place].get(mode="promise_in_bounds")

    found = jax.tree.map(read, rows)
    timestep, last_action, actor_output = jax.tree.map(lambda x: x[context:], found)
    core = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[slot * layout.starts + start], stored)
    frames = _frames(found.timestep, context) if context else ()
    return Windows(timestep, last_action[1:], actor_output, RecurrentState(core, frames, last_action[0]))


def _frames(timestep: TimeStep, context: int) -> Any:
    """The frames before row `context`, [n, context, ...]; zeros before the episode that reaches up to it."""
    first = timestep.step_type[:context] == StepType.FIRST
    # whether an episode begins between a row (exclusive) and the window
    later = jnp.flip(jnp.cumsum(jnp.flip(first.astype(jnp.int32), 0), 0), 0) - first
    observation, _ = split_action_mask(timestep.observation)

    def visible(x: Array) -> Array:
        seen = (later == 0).reshape(later.shape + (1,) * (x.ndim - 2))
        return jnp.moveaxis(jnp.where(seen, x[:context], jnp.zeros((), x.dtype)), 0, 1)

    return jax.tree.map(visible, observation)
