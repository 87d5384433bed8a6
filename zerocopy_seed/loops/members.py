"""Many runs as one program: the on-device loop under `vmap`, with members spread over devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.config import Config
from zerocopy_seed.config_sweep import Member
from zerocopy_seed.loops.compiling import compile_once
from zerocopy_seed.loops.layout import DATA_AXIS
from zerocopy_seed.loops.on_device import (
    TrainState,
    Window,
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
)
from zerocopy_seed.loops.signals import hearing_signals
from zerocopy_seed.types import Agent, Array


class MembersProgram(NamedTuple):
    """What trains many runs at once; every leaf of their states and windows is [members, ...].

    Attributes:
      dispatch: (state, window, num_updates int32, restart [members] bool) -> state, window: so many updates,
        the windows of some members begun anew before them; donates state and window.
      window: an empty one, for the first dispatch.
      metric_names: of the metrics in the windows.
    """

    dispatch: Callable[[TrainState, Window, Any, Any], tuple[TrainState, Window]]
    window: Window
    metric_names: tuple[str, ...]


def init_members(
    config: Config, environment: Vectorized, members: Sequence[Member], mesh: Mesh | None
) -> TrainState:
    """The states of runs that have not begun, [members, ...]: each what it would be alone."""
    seeds = np.array([member.config.seed for member in members], np.uint32)
    swept = [path.removeprefix("agent.") for path in members[0].setting]
    settings = {
        name: np.array([getattr(member.config.agent, name) for member in members], np.float32)
        for name in swept
    }

    def init(seed: Array, setting: dict[str, Array]) -> TrainState:
        # Initial states depend on settings too (the adaptive entropy cost), so the agent is the member's own.
        own: Any = setting
        agent = make_agent(
            dataclasses.replace(config.agent, **own),
            config.network,
            environment.spec,
            num_slots=config.env.num_envs,
        )
        return init_train_state(agent, environment, seed, config.env.num_envs)

    sharding = None if mesh is None else NamedSharding(mesh, P(DATA_AXIS))
    return compile_once(jax.vmap(init), seeds, settings, out_shardings=sharding)(seeds, settings)


def compile_members(
    config: Config, agent: Agent, environment: Vectorized, state: TrainState, mesh: Mesh | None
) -> MembersProgram:
    """The loop of one run under `vmap` over members; on a mesh every device runs its own members.

    Args:
      config: of all of them.
      agent: made of `config`; what is swept it reads from the state.
      environment: of each.
      state: of all members, laid out over `mesh`.
      mesh: None for one device.
    """
    num_members = state.learner.env_steps.low.shape[0]
    update = make_update(agent, environment, config.agent.unroll_length)
    names = metric_names(update, jax.eval_shape(lambda: _member_of(state, 0)))
    updates = make_dispatch(update, names)

    def dispatch(state: TrainState, window: Window, num_updates: Array, restart: Array):
        window = jax.tree.map(lambda leaf: jnp.where(restart, jnp.zeros_like(leaf), leaf), window)
        return updates(state, window, num_updates)

    many = jax.vmap(dispatch, in_axes=(0, 0, None, 0))
    window = jax.tree.map(
        lambda leaf: jnp.zeros((num_members, *leaf.shape), leaf.dtype), make_window(len(names))
    )
    if mesh is not None:
        spread = P(DATA_AXIS)
        many = jax.shard_map(
            many,
            mesh=mesh,
            in_specs=(spread, spread, P(), spread),
            out_specs=(spread, spread),
            check_vma=False,
        )
        window = jax.device_put(window, NamedSharding(mesh, spread))
    lowered = jax.jit(many, donate_argnums=(0, 1)).lower(
        state, window, jnp.int32(1), np.zeros(num_members, bool)
    )
    return MembersProgram(hearing_signals(lowered.compile), window, names)


def take_member(state: TrainState, place: int) -> TrainState:
    """One member's state as it would be alone, on the device that trains it."""
    num_members = state.learner.env_steps.low.shape[0]

    def shards(leaf: Any) -> list[Any]:
        return sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)

    num_local = num_members // len(state.learner.env_steps.low.addressable_shards)
    device, local = divmod(place, num_local)
    return _take(jax.tree.map(lambda leaf: shards(leaf)[device].data, state), np.int32(local))


def put_member(state: TrainState, member: TrainState, place: int) -> TrainState:
    """All members' `state`, which is donated, with this one's in its place."""
    layout = jax.tree.map(lambda leaf: leaf.sharding, state)
    replicated = jax.tree.map(
        lambda leaf: leaf if len(leaf.device_set) == 1 else NamedSharding(leaf.mesh, P()), layout
    )
    put = jax.jit(_put, donate_argnums=0, out_shardings=layout)
    return put(state, jax.device_put(member, replicated), np.int32(place))


def _member_of(state: TrainState, place: Any) -> TrainState:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, place, keepdims=False), state)


_take = jax.jit(_member_of)


def _put(state: TrainState, member: TrainState, place: Array) -> TrainState:
    # A choice rather than a write at a place, so that a mesh's devices need not talk.
    def put(leaf: Array, new: Array) -> Array:
        is_there = jnp.arange(leaf.shape[0]) == place
        return jnp.where(is_there.reshape(-1, *[1] * new.ndim), new[None], leaf)

    return jax.tree.map(put, state, member)
