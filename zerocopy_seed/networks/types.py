"""What goes into a network and what comes out."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from zerocopy_envs.types import ActionSpec, BoundedAction, MultiDiscreteAction

Array = jax.Array


class NetworkInput(NamedTuple):
    """A stretch of T steps of B slots.

    Attributes:
      observation: a pytree [T, B, ...]; with frame stacking already stacked, see `stacked_shape`.
      last_action: [T, B] or [T, B, heads] int32, -1 where there is none; [T, B, *shape] float32 for bounded
        actions, 0 where there is none.
      reward: [T, B] float32, what the last action earned.
      first: [T, B] bool, True where an episode begins.
    """

    observation: Any
    last_action: Array
    reward: Array
    first: Array


class NetworkOutput(NamedTuple):
    """Policy and value heads' output.

    Attributes:
      policy: [T, B, P] float32, the action distribution's parameters: logits, in which illegal actions are
        masked already; of bounded actions the means, then what makes the deviations.
      value: [T, B] float32.
    """

    policy: Array
    value: Array


def no_action(dtype: Any) -> Array:
    """What stands for the last action where there is none: -1, of bounded actions (floats) 0."""
    return jnp.array(0 if jnp.issubdtype(dtype, jnp.floating) else -1, dtype)


def no_actions(action: ActionSpec, lead: tuple[int, ...]) -> Array:
    """As many of them, [*lead, ...], as an action of this spec has."""
    if isinstance(action, BoundedAction):
        return jnp.full((*lead, *action.shape), no_action(jnp.float32))
    heads = (len(action.num_values),) if isinstance(action, MultiDiscreteAction) else ()
    return jnp.full((*lead, *heads), no_action(jnp.int32))


def stacked_shape(shape: tuple[int, ...], frame_stack: int) -> tuple[int, ...]:
    """The shape of one observation's array once `frame_stack` of them are stacked, oldest first.

    Channels lie last: [H, W, C] becomes [H, W, frame_stack * C] and a vector [N] becomes [frame_stack * N].
    A scalar [] and a picture without channels [H, W] get an axis: [frame_stack], [H, W, frame_stack].
    """
    if frame_stack == 1:
        return shape
    if has_no_channels(shape):
        return (*shape, frame_stack)
    return (*shape[:-1], frame_stack * shape[-1])


def has_no_channels(shape: tuple[int, ...]) -> bool:
    """Whether frames of this shape are stacked on an axis of their own."""
    return len(shape) in (0, 2)
