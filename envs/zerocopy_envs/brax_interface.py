"""Environments with brax's interface, which MuJoCo Playground shares, as `zerocopy_envs.Environment`s.

That interface: `reset(key)` and `step(state, action)` return a State with `obs`, `reward`, `done`,
`metrics`, `info` and the simulator's own state. Neither resets by itself, `done` says that the episode
terminated, and there is no time limit: brax and Playground add both with wrappers that are not used here.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.suite_adapter import strong
from zerocopy_envs.types import Array, ArraySpec, BoundedAction, EnvironmentSpec, Key, StepType, TimeStep


class BraxState(NamedTuple):
    """What a step needs of the last one.

    Attributes:
      physics: the simulator's own state.
      info: the environment's, as its reset makes it.
      time: int32, steps since the reset.
    """

    physics: Any
    info: Any
    time: Array


class BraxInterface:
    """One environment with brax's interface.

    Actions are clipped to [-1, 1], which is what these environments take; those whose actuators have another
    range scale them. Observations and rewards are float32.

    Args:
      environment: an object with brax's interface.
      physics: the name of the simulator's own state in a State.
      max_episode_steps: the time limit, in steps of the agent: LAST with discount 1, unless the episode
        terminates on that very step.
      action_repeat: steps of the environment that each action is held for; their rewards are added, and the
        repetition stops where the episode terminates.
    """

    num_resets_at_once = 64  # a reset costs as much as a step: `Vectorized` shall compute only those needed

    def __init__(self, environment: Any, physics: str, max_episode_steps: int, action_repeat: int):
        self._environment, self._physics, self._repeat = environment, physics, action_repeat
        # A step overwrites all that a State has beside its physics and info, so zeros do for the rest.
        self._start = jax.eval_shape(self._reset, jax.random.key(0, impl="threefry2x32"))
        observation = jax.tree.map(lambda a: ArraySpec(a.shape, np.float32), self._start.obs)
        action = BoundedAction((int(environment.action_size),))
        self.spec = EnvironmentSpec(observation, action, max_episode_steps, action_repeat)
        self.render = None

    def reset(self, key: Key) -> tuple[BraxState, TimeStep]:
        """A new episode, all of whose randomness follows from the key."""
        start = self._reset(key)
        first = TimeStep(jnp.int8(StepType.FIRST), jnp.float32(0), jnp.float32(1), _as_float32(start.obs))
        return self._carried(start, jnp.int32(0)), first

    def step(self, state: BraxState, action: Array) -> tuple[BraxState, TimeStep]:
        """One step; LAST with discount 0 if terminated, LAST with discount 1 if only the time is over."""
        action = jnp.clip(strong(action, np.float32), -1, 1)
        after = self._step(self._full_state(state), action)
        reward = after.reward
        if self._repeat > 1:

            def again(carry: tuple[Any, Array], _: None) -> tuple[tuple[Any, Array], None]:
                before, total = carry
                after = self._step(before, action)
                ended = before.done > 0
                after = jax.tree.map(lambda old, new: jnp.where(ended, old, new), before, after)
                return (after, total + jnp.where(ended, 0, after.reward)), None

            (after, reward), _ = jax.lax.scan(again, (after, reward), length=self._repeat - 1)
        time = state.time + 1
        observation = _as_float32(after.obs)
        # A simulation that broke ends here, and what it shows is no number that a network could read.
        is_sound = jnp.isfinite(reward)
        for leaf in jax.tree.leaves(observation):
            is_sound &= jnp.isfinite(leaf).all()
        observation, reward = jax.tree.map(
            lambda x: jnp.where(jnp.isfinite(x), x, jnp.float32(0)), (observation, reward)
        )
        terminated = (after.done > 0) | ~is_sound
        ended = terminated | (time >= self.spec.max_episode_steps)
        timestep = TimeStep(
            step_type=jnp.where(ended, jnp.int8(StepType.LAST), jnp.int8(StepType.MID)),
            reward=reward,
            discount=jnp.where(terminated, jnp.float32(0), jnp.float32(1)),
            observation=observation,
        )
        return self._carried(after, time), timestep

    def _reset(self, key: Key) -> Any:
        with _their_ways():
            start = self._environment.reset(key)
        return jax.tree.map(lambda x: strong(x, jnp.result_type(x)), start)

    def _step(self, state: Any, action: Array) -> Any:
        """The environment's, with the types of its reset: constants would be weakly typed."""
        with _their_ways():
            after = self._environment.step(state, action)
        return jax.tree.map(lambda x, like: strong(x, like.dtype), after, self._start)

    def _full_state(self, state: BraxState) -> Any:
        blank = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), self._start)
        return blank.replace(info=dict(state.info), **{self._physics: state.physics})

    def _carried(self, state: Any, time: Array) -> BraxState:
        return BraxState(getattr(state, self._physics), state.info, time)


@contextlib.contextmanager
def _their_ways() -> Iterator[None]:
    """Rank promotion and what MJX calls deprecated are the simulators' business."""
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _as_float32(observation: Any) -> Any:
    return jax.tree.map(lambda leaf: strong(leaf, np.float32), observation)
