"""Probe environments: tiny, with values known exactly, to find out which part of an agent is wrong.

Each is a factory for `make("zerocopy_envs.probes:NAME")`. With discount gamma:

- `constant_reward`: one step, reward 1. V = 1.
- `observed_reward`: one step, reward equals the observation, +1 or -1. V(obs) = obs.
- `delayed_reward`: two steps, reward 1 at the second; the observation is the time. V(0) = gamma, V(1) = 1.
- `chosen_reward`: one step, reward +1 for action 1 and -1 for action 0. V* = 1.
- `truncated(length)`: reward 1 a step, cut after `length` steps, never terminated. V = 1 / (1 - gamma).
- `masked`: one step, three actions, one of which is illegal (the mask names it) and would pay 10;
  of the legal ones the one that the observation names pays 1, the other 0. V* = 1.
- `bounded_target(offset, scale)`: one step, two bounded actions that must be where the observation says, and
  that is `offset` plus `scale` times the place; 1 minus the mean squared distance. V* = 1.
- `two_heads`: one step, heads of 3 and 2 values; 1/2 for each head that copies the observation. V* = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.types import (
    ActionSpec,
    Array,
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    Key,
    MultiDiscreteAction,
    StepType,
    TimeStep,
)


class ProbeState(NamedTuple):
    """`time`: int32, steps taken. `secret`: a pytree that reset draws and that lasts the episode."""

    time: Array
    secret: Any


class Probe:
    """An episode of fixed length.

    Args:
      observation: spec of what `observe` returns.
      action: the action's spec.
      length: steps per episode.
      draw: key -> secret.
      observe: state -> observation.
      reward: state before the step, action -> float32.
      terminates: whether the end is a termination; else a truncation.
    """

    def __init__(
        self,
        observation: Any,
        action: ActionSpec,
        length: int,
        draw: Callable[[Key], Any],
        observe: Callable[[ProbeState], Any],
        reward: Callable[[ProbeState, Array], Array],
        terminates: bool = True,
    ):
        self.spec = EnvironmentSpec(observation, action, max_episode_steps=length)
        self._length, self._terminates = length, terminates
        self._draw, self._observe, self._reward = draw, observe, reward

    def reset(self, key: Key) -> tuple[ProbeState, TimeStep]:
        """A new episode."""
        state = ProbeState(jnp.int32(0), self._draw(key))
        first = TimeStep(jnp.int8(StepType.FIRST), jnp.float32(0), jnp.float32(1), self._observe(state))
        return state, first

    def step(self, state: ProbeState, action: Array) -> tuple[ProbeState, TimeStep]:
        """One step."""
        reward = jnp.asarray(self._reward(state, action), jnp.float32)
        state = state._replace(time=state.time + 1)
        ended = state.time >= self._length
        step_type = jnp.where(ended, jnp.int8(StepType.LAST), jnp.int8(StepType.MID))
        discount = jnp.where(ended & self._terminates, jnp.float32(0), jnp.float32(1))
        return state, TimeStep(step_type, reward, discount, self._observe(state))


_ONE_FLOAT = ArraySpec((1,), np.dtype(np.float32), -1.0, 1.0)


def _nothing(key: Key) -> tuple[()]:
    return ()


def _one(state: ProbeState) -> Array:
    return jnp.ones((1,), jnp.float32)


def constant_reward() -> Probe:
    """One step, reward 1, a constant observation: does the value loss work at all?"""
    return Probe(_ONE_FLOAT, DiscreteAction(2), 1, _nothing, _one, lambda state, action: jnp.float32(1))


def observed_reward() -> Probe:
    """One step, reward equals the observation, +1 or -1: do gradients reach the torso?"""
    return Probe(
        _ONE_FLOAT,
        DiscreteAction(2),
        1,
        lambda key: 2 * jax.random.bernoulli(key, shape=(1,)).astype(jnp.float32) - 1,
        lambda state: state.secret,
        lambda state, action: state.secret[0],
    )


def delayed_reward() -> Probe:
    """Two steps, reward 1 at the second: is the discount applied, once?"""
    return Probe(
        ArraySpec((1,), np.dtype(np.float32), 0.0, 2.0),
        DiscreteAction(2),
        2,
        _nothing,
        lambda state: state.time.astype(jnp.float32)[None],
        lambda state, action: state.time == 1,
    )


def chosen_reward() -> Probe:
    """One step, +1 for action 1 and -1 for action 0: does the policy loss have the right sign?"""
    return Probe(_ONE_FLOAT, DiscreteAction(2), 1, _nothing, _one, lambda state, action: 2 * action - 1)


def truncated(length: int = 5) -> Probe:
    """Reward 1 a step, cut after `length` steps: does a truncation bootstrap?"""
    return Probe(
        _ONE_FLOAT, DiscreteAction(2), length, _nothing, _one, lambda state, action: jnp.float32(1), False
    )


def masked() -> Probe:
    """One step with an illegal action that would pay 10: is the mask kept?

    The observation: `action_mask` bool [3], and `target` float32 [3], one-hot, the legal action that pays.
    """

    def draw(key: Key) -> tuple[Array, Array]:
        order = jax.random.permutation(key, jnp.arange(3, dtype=jnp.int32))
        return order[0], order[1]

    def observe(state: ProbeState) -> dict[str, Array]:
        illegal, target = state.secret
        actions = jnp.arange(3, dtype=jnp.int32)
        return {"action_mask": actions != illegal, "target": (actions == target).astype(jnp.float32)}

    def reward(state: ProbeState, action: Array) -> Array:
        illegal, target = state.secret
        return jnp.where(action == illegal, 10.0, jnp.where(action == target, 1.0, 0.0))

    observation = {
        "action_mask": ArraySpec((3,), np.dtype(bool)),
        "target": ArraySpec((3,), np.dtype(np.float32), 0.0, 1.0),
    }
    return Probe(observation, DiscreteAction(3), 1, draw, observe, reward)


def two_heads() -> Probe:
    """One step, heads of 3 and 2 values that must each copy the observation: are log-probabilities summed?

    The observation is float32 [5]: the first head's target one-hot, then the second's.
    """
    sizes = (3, 2)

    def draw(key: Key) -> Array:
        return jax.random.randint(key, (2,), 0, jnp.array(sizes, jnp.int32), jnp.int32)

    def observe(state: ProbeState) -> Array:
        heads = [jax.nn.one_hot(state.secret[i], size, dtype=jnp.float32) for i, size in enumerate(sizes)]
        return jnp.concatenate(heads)

    return Probe(
        ArraySpec((5,), np.dtype(np.float32), 0.0, 1.0),
        MultiDiscreteAction(sizes),
        1,
        draw,
        observe,
        lambda state, action: jnp.mean((action == state.secret).astype(jnp.float32)),
    )


def bounded_target(offset: float = 0.0, scale: float = 1.0) -> Probe:
    """One step, two bounded actions: are they squashed on both sides, is a shifted observation normalised?

    The observation, float32 [2], is `offset + scale * target`, targets uniform in [-0.8, 0.8].
    """
    minimum, maximum = offset - abs(scale), offset + abs(scale)
    return Probe(
        ArraySpec((2,), np.dtype(np.float32), minimum, maximum),
        BoundedAction((2,)),
        1,
        lambda key: jax.random.uniform(key, (2,), jnp.float32, -0.8, 0.8),
        lambda state: offset + scale * state.secret,
        lambda state, action: 1.0 - jnp.mean(jnp.square(action - state.secret)),
    )
