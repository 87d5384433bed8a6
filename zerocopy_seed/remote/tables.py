"""What the device keeps of the actors' environments: agent states by slot, unrolls in the making. Pure.

`S` slots, `U` unrolls, `b` rows of one inference batch. An unroll's number is its place in the tables; which
slot it belongs to is the host's business. A row of a batch whose slot is S, or a write to unroll U, is
padding: it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_envs.types import EnvironmentSpec, TimeStep
from zerocopy_seed.recurrent import zero_timestep
from zerocopy_seed.types import (
    ActingParams,
    Agent,
    AgentState,
    Array,
    Key,
    Mode,
    RecurrentState,
    Trajectory,
)


class Tables(NamedTuple):
    """See the module; time comes first, as `learn` wants it.

    Attributes:
      agent: AgentState [S]; its typed keys as their words, since typed keys leave jit's fast path.
      scalars: int32 [T+1, U, 3], of timesteps: see `timestep_of`.
      observation: [T+1, U, ...].
      action: [T, U, ...].
      actor_output: [T, U, ...].
      recurrent: [U, ...] entering row 0.
    """

    agent: AgentState
    scalars: Array
    observation: Any
    action: Array
    actor_output: Any
    recurrent: RecurrentState


class Places(NamedTuple):
    """Where the rows of a batch belong, each [b] int32.

    Attributes:
      slot: whose agent state acts; S for padding.
      unroll: where timestep and action go.
      row: as which row, 0 to T - 1.
      closed: the unroll that this timestep closes as its row T; U where there is none.
    """

    slot: Array
    unroll: Array
    row: Array
    closed: Array


NUM_WORDS = len(Places._fields) + 3
"""int32 of a row that goes up: `Places`, and a timestep's scalars as `timestep_of` takes them."""


class Column(NamedTuple):
    """The unrolls that become a trajectory, [B] each: `unroll` int32 (U: padding), `slot`, `continues`."""

    unroll: Array
    slot: Array
    continues: Array


def make_tables(
    agent: Agent,
    spec: EnvironmentSpec,
    params: ActingParams,
    *,
    num_slots: int,
    num_unrolls: int,
    length: int,
) -> Tables:
    """Tables of zeros; a slot is opened before its first step.

    Args:
      agent: whose outputs are kept.
      spec: of the environments.
      params: what acting reads, or its types.
      num_slots: S.
      num_unrolls: U.
      length: T.
    """

    def outputs(params: ActingParams) -> tuple[Array, Any, AgentState]:
        slots = jnp.zeros([1], jnp.int32)
        state = agent.initial_state(jax.random.split(jax.random.key(0, impl="threefry2x32"), 1), slots)
        action, actor_output, _ = agent.act(params, state, zero_timestep(spec), Mode.TRAIN)
        return action, actor_output, _key_words(state)

    action, actor_output, state = jax.eval_shape(outputs, params)
    observation = jax.eval_shape(lambda: zero_timestep(spec).observation)

    def zeros(*leading: int) -> Callable[[Any], Any]:
        return lambda tree: jax.tree.map(lambda x: jnp.zeros((*leading, *x.shape[1:]), x.dtype), tree)

    return Tables(
        agent=zeros(num_slots)(state),
        scalars=jnp.zeros((length + 1, num_unrolls, 3), jnp.int32),
        observation=zeros(length + 1, num_unrolls)(observation),
        action=zeros(length, num_unrolls)(action),
        actor_output=zeros(length, num_unrolls)(actor_output),
        recurrent=zeros(num_unrolls)(state.recurrent),
    )


def open_slots(agent: Agent, tables: Tables, keys: Key, slots: Array, is_opened: Array) -> Tables:
    """Gives slots [S] int32 a fresh agent state from `keys` [S], where `is_opened` [S] bool."""
    fresh = _key_words(agent.initial_state(keys, slots))

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(is_opened.reshape(is_opened.shape + (1,) * (new.ndim - 1)), new, old)

    return tables._replace(agent=jax.tree.map(choose, fresh, tables.agent))


def timestep_of(scalars: Array, observation: Any) -> TimeStep:
    """A timestep [...] whose scalars are int32 [..., 3]: its step type, the bits of its reward and discount.

    They are kept as one array, since each that a step writes costs it about as much as the writing itself.
    """
    reward, discount = (lax.bitcast_convert_type(scalars[..., i], jnp.float32) for i in (1, 2))
    return TimeStep(scalars[..., 0].astype(jnp.int8), reward, discount, observation)


def step(
    agent: Agent, tables: Tables, params: ActingParams, words: Array, observation: Any
) -> tuple[Tables, Array]:
    """Acts upon timesteps [b] and notes all of it in the tables.

    Args:
      agent: acts.
      tables: to be donated.
      params: what acting reads.
      words: int32 [NUM_WORDS, b]: `Places`, and the scalars that `timestep_of` takes.
      observation: [b, ...].

    Returns:
      The new tables and the actions [b, ...].
    """
    tables = close(tables, words, observation)
    places, scalars = _split(words)
    state = jax.tree.map(lambda x: x.at[places.slot].get(mode="clip"), tables.agent)
    timestep = timestep_of(scalars, observation)
    action, actor_output, new_state = agent.act(params, _typed_keys(state), timestep, Mode.TRAIN)

    def write(table: Array, rows: Array) -> Array:
        return _write(table, places.unroll, places.row, rows)

    # Unlike rows, what enters an unroll is written once.
    opened = jnp.where(places.row == 0, places.unroll, _num_unrolls(tables))
    return Tables(
        agent=jax.tree.map(
            lambda table, new: table.at[places.slot].set(new, mode="drop"),
            tables.agent,
            _key_words(new_state),
        ),
        scalars=write(tables.scalars, scalars),
        observation=jax.tree.map(write, tables.observation, observation),
        action=write(tables.action, action),
        actor_output=jax.tree.map(write, tables.actor_output, actor_output),
        recurrent=jax.tree.map(
            lambda table, entering: table.at[opened].set(entering, mode="drop"),
            tables.recurrent,
            state.recurrent,
        ),
    ), action


def close(tables: Tables, words: Array, observation: Any) -> Tables:
    """Writes timesteps [b], given as to `step`, as the last rows of the unrolls that they close."""
    places, scalars = _split(words)
    rows = jnp.full_like(places.closed, tables.scalars.shape[0] - 1)

    def write(table: Array, new: Array) -> Array:
        return _write(table, places.closed, rows, new)

    return tables._replace(
        scalars=write(tables.scalars, scalars),
        observation=jax.tree.map(write, tables.observation, observation),
    )


def make_trajectory(num_columns: int, tables: Tables) -> Trajectory:
    """A trajectory [T, num_columns] of zeros, to gather into."""

    def columns(axis: int) -> Callable[[Array], Array]:
        return lambda table: jnp.zeros(
            (*table.shape[:axis], num_columns, *table.shape[axis + 1 :]), table.dtype
        )

    return Trajectory(
        timestep=jax.tree.map(columns(1), timestep_of(tables.scalars, tables.observation)),
        action=columns(1)(tables.action),
        actor_output=jax.tree.map(columns(1), tables.actor_output),
        recurrent=jax.tree.map(columns(0), tables.recurrent),
        slot=jnp.zeros(num_columns, jnp.int32),
        continues=jnp.zeros(num_columns, bool),
    )


def gather_into(trajectory: Trajectory, tables: Tables, column: Column, begin: Array) -> Trajectory:
    """Unrolls as the columns from `begin` on; padding has FIRST in every row, so that nothing in it counts.

    To be donated: on a CPU the pages of a new trajectory cost several times what the copy does.
    """

    def write(axis: int, padding: float = 0) -> Callable[[Array, Array], Array]:
        place = (slice(None),) * axis + (column.unroll,)

        def columns(old: Array, table: Array) -> Array:
            new = table.at[place].get(mode="fill", fill_value=padding)
            return lax.dynamic_update_slice_in_dim(old, new, begin, axis)

        return columns

    timestep = timestep_of(tables.scalars, tables.observation)
    written = jax.tree.map(write(1), trajectory.timestep, timestep)
    discount = write(1, padding=1)(trajectory.timestep.discount, timestep.discount)
    return Trajectory(
        timestep=written._replace(discount=discount),  # padding is no stand-in, whose discount is 0
        action=write(1)(trajectory.action, tables.action),
        actor_output=jax.tree.map(write(1), trajectory.actor_output, tables.actor_output),
        recurrent=jax.tree.map(write(0), trajectory.recurrent, tables.recurrent),
        slot=lax.dynamic_update_slice_in_dim(trajectory.slot, column.slot, begin, 0),
        continues=lax.dynamic_update_slice_in_dim(trajectory.continues, column.continues, begin, 0),
    )


def _split(words: Array) -> tuple[Places, Array]:
    """Places [b] and scalars [b, 3]."""
    num_places = len(Places._fields)
    return Places(*words[:num_places]), words[num_places:].T


def _write(table: Array, unroll: Array, row: Array, rows: Array) -> Array:
    """Writes `rows` [b, ...] at [row, unroll] of a table [rows, U, ...]."""
    return table.at[row, unroll].set(rows, mode="drop")


def _num_unrolls(tables: Tables) -> int:
    return tables.scalars.shape[1]


def _key_words(state: AgentState) -> AgentState:
    exploration = state.exploration
    return state._replace(exploration=exploration._replace(key=jax.random.key_data(exploration.key)))


def _typed_keys(state: AgentState) -> AgentState:
    exploration = state.exploration
    key = jax.random.wrap_key_data(exploration.key, impl="threefry2x32")
    return state._replace(exploration=exploration._replace(key=key))
