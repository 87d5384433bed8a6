"""The wrapper that turns one episode of one JAX environment into a stream from many."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from zerocopy_envs.types import Array, Environment, EnvironmentSpec, EnvState, Key, StepType, TimeStep
from zerocopy_envs.usable import usable


class VectorState(NamedTuple):
    """State of B slots.

    Attributes:
      environment: the environment's own state, leaves [B, ...].
      key: [B] typed keys, each slot's own; never changes.
      episode: [B] int32, episodes begun in this slot before the current one.
      ended: [B] bool, the last timestep was LAST, or could not be used.
    """

    environment: EnvState
    key: Key
    episode: Array
    ended: Array


class Vectorized:
    """Steps B copies of an environment and resets each on the step after its LAST, which ignores its action.

    A timestep that cannot be used (`zerocopy_envs.usable`) is returned as it is, and ends its episode too.

    Episode n of a slot starts from `episode_key(key, n)` of the slot's own key, so every episode is fresh
    and no slot depends on another. Resets are computed only in steps where some slot needs one (under
    vmap over seeds always: a condition that differs between seeds becomes a choice between both). Pure:
    `reset` and `step` pass through jit, vmap, scan and shard_map, and a state keeps its types.

    A step with resets computes one for every slot, which is cheapest where a reset costs little. Where it is
    dear, an environment has an attribute `num_resets_at_once`: then resets are computed for the slots that
    need one alone, so many at a time (with very many slots, a 64th of them). The episodes are the same.

    Args:
      environment: a JAX `Environment`.
    """

    def __init__(self, environment: Environment):
        self.environment = environment
        self._num_resets_at_once: int = getattr(environment, "num_resets_at_once", None) or 0

    @property
    def spec(self) -> EnvironmentSpec:
        """The environment's own: one slot's, without the batch dimension."""
        return self.environment.spec

    def reset(self, keys: Key) -> tuple[VectorState, TimeStep]:
        """Starts every slot's first episode.

        Args:
          keys: [B] typed threefry keys, one per slot.

        Returns:
          The state, and FIRST timesteps [B]. A slot whose FIRST cannot be used begins anew at the next step.
        """
        episode = jnp.zeros(keys.shape, jnp.int32)
        state, timestep = self._reset(keys, episode)
        ended = ~usable(timestep, jnp)
        slots = jax.random.key_data(keys)[:, 0] == 0
        return _varying_like(slots, (VectorState(state, keys, episode, ended), timestep))

    def step(self, state: VectorState, actions: Array) -> tuple[VectorState, TimeStep]:
        """Steps every slot; a slot whose last timestep was LAST starts its next episode instead.

        Args:
          state: as the last call returned it.
          actions: [B, ...], one per slot.

        Returns:
          The new state, and timesteps [B].
        """
        episode = state.episode + state.ended
        stepped = jax.vmap(self.environment.step)(state.environment, actions)
        stepped = _varying_like(state.ended, stepped)

        def with_resets(stepped: Any) -> Any:
            fresh = self._reset(state.key, episode)
            return jax.tree.map(lambda new, old: _where(state.ended, new, old), fresh, stepped)

        if self._num_resets_at_once:
            inner, timestep = self._reset_some(state.key, episode, state.ended, stepped)
        else:
            inner, timestep = jax.lax.cond(
                jnp.any(state.ended), with_resets, lambda stepped: stepped, stepped
            )
        # A simulator that has once returned NaN goes on so, perhaps for ever: its slot begins anew.
        ended = (timestep.step_type == StepType.LAST) | ~usable(timestep, jnp)
        return VectorState(inner, state.key, episode, ended), timestep

    def _reset_some(self, keys: Key, episode: Array, ended: Array, stepped: Any) -> Any:
        """`stepped` with the slots that ended reset, as many at a time as the environment says."""
        num_slots = len(ended)
        # Where all slots end at once, the groups come one after another: never more than 64.
        size = min(max(self._num_resets_at_once, num_slots // 64), num_slots)
        num_ended = jnp.sum(ended, dtype=jnp.int32)
        # Padded to whole groups: the last one must not slide back over slots that are done.
        order = jnp.pad(jnp.argsort(~ended).astype(jnp.int32), (0, -num_slots % size))

        def reset_group(carry: tuple[Array, Any]) -> tuple[Array, Any]:
            done, tree = carry
            slots = jax.lax.dynamic_slice_in_dim(order, done, size)
            fresh = self._reset(keys[slots], episode[slots])
            place = jnp.where(done + jnp.arange(size, dtype=jnp.int32) < num_ended, slots, num_slots)
            return done + size, jax.tree.map(
                lambda leaf, new: leaf.at[place].set(new, mode="drop"), tree, fresh
            )

        # 0, written so that inside shard_map it varies over the devices as `num_ended` does.
        start = jnp.minimum(num_ended, 0)
        return jax.lax.while_loop(lambda carry: carry[0] < num_ended, reset_group, (start, stepped))[1]

    def _reset(self, keys: Key, episode: Array) -> tuple[EnvState, TimeStep]:
        return jax.vmap(self.environment.reset)(jax.vmap(episode_key)(keys, episode))


def episode_key(key: Key, episode: Array | int) -> Key:
    """The key that a slot's episode number `episode` (from 0) starts from."""
    return jax.random.fold_in(key, episode)


def _varying_like(slots: Array, tree: Any) -> Any:
    """Marks leaves [B, ...] inside shard_map as varying over the devices that `slots` [B] bool varies over.

    A loop's carry must keep its type, which a constant (an initial `time`, the same on all devices) would
    not. Choosing between a leaf and itself is compiled to nothing.
    """
    return jax.tree.map(lambda leaf: _where(slots, leaf, leaf), tree)


def _where(mask: Array, new: Array, old: Array) -> Array:
    return jnp.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)
