"""What an agent remembers of the past, step by step while acting and all at once while learning.

Everything here follows one rule: at a FIRST nothing remains of what was before. The core's part of it is
the network's (`NetworkInput.first`); stacked frames and the last action are reset here.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zerocopy_envs.types import EnvironmentSpec, StepType, TimeStep
from zerocopy_seed.networks import NetworkInput
from zerocopy_seed.networks.types import has_no_channels, no_action, no_actions
from zerocopy_seed.types import Key, RecurrentState, split_action_mask

Array = jax.Array


def initial_recurrent(
    network: Any, spec: EnvironmentSpec, frame_stack: int, batch_size: int
) -> RecurrentState:
    """The state of `batch_size` slots before their first step: zeros, and no last action.

    Args:
      network: anything with `initial_core(batch_size)`.
      spec: of the environment; an `action_mask` in its observation is never stacked.
      frame_stack: observations seen at once.
      batch_size: number of slots, B.
    """
    rest, _ = split_action_mask(spec.observation)
    frames: Any = ()
    if frame_stack > 1:
        frames = jax.tree.map(
            lambda leaf: jnp.zeros((batch_size, frame_stack - 1, *leaf.shape), leaf.dtype), rest
        )
    return RecurrentState(network.initial_core(batch_size), frames, no_actions(spec.action, (batch_size,)))


def reset_recurrent(state: RecurrentState, first: Array) -> RecurrentState:
    """Forgets frames and last action where `first` [B] is True; the network does so with the core."""
    return state._replace(
        frames=jax.tree.map(lambda x: _where(first, jnp.zeros((), x.dtype), x), state.frames),
        last_action=_where(first, no_action(state.last_action.dtype), state.last_action),
    )


def stack_frames(frames: Any, observation: Any) -> tuple[Any, Any]:
    """Stacks the present observation upon those before it.

    Args:
      frames: [B, k - 1, ...] oldest first, already reset where an episode begins; or ().
      observation: [B, ...].

    Returns:
      The stacked observation (its shape without [B]: `networks.types.stacked_shape`), and the frames of
      the next step.
    """
    if not jax.tree.leaves(frames):
        return observation, frames
    rest, mask = split_action_mask(observation)
    joined = jax.tree.map(lambda old, x: jnp.concatenate([old, x[:, None]], axis=1), frames, rest)
    stacked = jax.tree.map(lambda x: join_frames(list(jnp.moveaxis(x, 1, 0)), x.ndim - 2), joined)
    return _with_mask(stacked, mask), jax.tree.map(lambda x: x[:, 1:], joined)


def stack_frames_unroll(frames: Any, observation: Any, first: Array) -> Any:
    """What `stack_frames` gives step by step, for a whole unroll at once.

    Args:
      frames: [B, k - 1, ...] entering row 0, or ().
      observation: [T+1, B, ...].
      first: [T+1, B] bool, where an episode begins.

    Returns:
      The stacked observations, [T+1, B, ...].
    """
    if not jax.tree.leaves(frames):
        return observation
    rest, mask = split_action_mask(observation)
    num_lags = jax.tree.leaves(frames)[0].shape[1]
    num_rows = first.shape[0]
    # visible[lag]: whether the frame `lag` rows ago belongs to the present episode.
    visible = [jnp.ones_like(first)]
    for lag in range(num_lags):
        begun = jnp.concatenate([jnp.zeros_like(first[:lag]), first])[:num_rows]
        visible.append(visible[-1] & ~begun)

    def stack(old: Array, x: Array) -> Array:
        past = jnp.concatenate([jnp.moveaxis(old, 1, 0), x])
        lagged = [
            _where(visible[lag], past[num_lags - lag : num_lags - lag + num_rows], jnp.zeros((), x.dtype))
            for lag in range(num_lags, 0, -1)
        ]
        return join_frames([*lagged, x], x.ndim - 2)

    return _with_mask(jax.tree.map(stack, frames, rest), mask)


def last_actions(entering: Array, action: Array, first: Array) -> Array:
    """The last action of every row of an unroll.

    Args:
      entering: [B] or [B, heads] int32, or [B, *shape] float32, before row 0.
      action: [T, B, ...] likewise.
      first: [T+1, B] bool, where an episode begins; -1 (float: 0) there.

    Returns:
      [T+1, B, ...].
    """
    return _where(first, no_action(action.dtype), jnp.concatenate([entering[None], action]))


def network_input_step(state: RecurrentState, timestep: TimeStep) -> tuple[NetworkInput, Any]:
    """What the network sees of one step [B], as an unroll of one row [1, B], and the next step's frames."""
    first = timestep.step_type == StepType.FIRST
    state = reset_recurrent(state, first)
    stacked, frames = stack_frames(state.frames, timestep.observation)
    inputs = NetworkInput(stacked, state.last_action, timestep.reward, first)
    return jax.tree.map(lambda x: x[None], inputs), frames


def init_network(network: Any, spec: EnvironmentSpec, frame_stack: int, key: Key) -> Any:
    """Initial variables of `network` for an environment of this spec."""
    recurrent = initial_recurrent(network, spec, frame_stack, 1)
    inputs, _ = network_input_step(recurrent, zero_timestep(spec))
    return network.init(key, inputs, recurrent.core)


def zero_timestep(spec: EnvironmentSpec) -> TimeStep:
    """A FIRST timestep [1] of zeros, for what needs no more than its types."""
    return TimeStep(
        step_type=jnp.zeros([1], jnp.int8),
        reward=jnp.zeros([1], jnp.float32),
        discount=jnp.ones([1], jnp.float32),
        observation=jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), spec.observation),
    )


def network_input_unroll(state: RecurrentState, timestep: TimeStep, action: Array) -> NetworkInput:
    """What the network sees of an unroll: state [B] entering row 0, timesteps [T+1, B], actions [T, B]."""
    first = timestep.step_type == StepType.FIRST
    return NetworkInput(
        stack_frames_unroll(state.frames, timestep.observation, first),
        last_actions(state.last_action, action, first),
        timestep.reward,
        first,
    )


def _where(condition: Array, x: Array, y: Array) -> Array:
    """`jnp.where` with a condition that lacks trailing dimensions."""
    rank = max(x.ndim, y.ndim)
    return jnp.where(condition.reshape(condition.shape + (1,) * (rank - condition.ndim)), x, y)


def join_frames(frames: list[Array], rank: int) -> Array:
    """Stacks frames [..., *shape], oldest first and `shape` of this rank, along the channels."""
    return jnp.stack(frames, -1) if has_no_channels((0,) * rank) else jnp.concatenate(frames, -1)


def _with_mask(observation: Any, mask: Any) -> Any:
    return observation if mask is None else {**observation, "action_mask": mask}
