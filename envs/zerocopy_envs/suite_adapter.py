"""What the adapters of JAX suites share: a suite's own reset and step become an `Environment`.

An adapter hands over two functions of the suite, neither of which resets by itself, and says which of its
ends are terminations. The rest is here: the keys of random steps, strong and lasting types, the timestep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import (
    ActionSpec,
    Array,
    ArraySpec,
    BoundedAction,
    EnvironmentSpec,
    Key,
    StepType,
    TimeStep,
)


class Moment(NamedTuple):
    """What a suite's step leads to.

    Attributes:
      state: the suite's own, a pytree of arrays.
      observation: nested dicts and tuples of arrays.
      reward: scalar of any number type.
      terminated: bool, the episode ended for a reason of the environment's own.
      truncated: bool, it ended by a time limit; `terminated` wins where both are true.
    """

    state: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any


class AdaptedState(NamedTuple):
    """The suite's own state, the episode's key, and int32 steps taken in the episode."""

    inner: Any
    key: Key
    time: Array


class AdaptedEnvironment:
    """A suite's environment as a `zerocopy_envs.Environment`.

    Args:
      reset: key -> the suite's state and its observation.
      step: key, state, action -> `Moment`. The key is the step's own.
      action: the spec of an action.
      max_episode_steps: where the suite ends an episode at the latest, or None.
      action_repeat: frames that pass for one action.
      num_resets_at_once: for `wrappers.Vectorized`, where a reset is dear; see there.
      render: the suite's state -> uint8 [H, W, 3], or None if it cannot be drawn.
    """

    def __init__(
        self,
        reset: Callable[[Key], tuple[Any, Any]],
        step: Callable[[Key, Any, Array], Moment],
        action: ActionSpec,
        max_episode_steps: int | None,
        *,
        action_repeat: int = 1,
        num_resets_at_once: int | None = None,
        render: Callable[[Any], Array] | None = None,
    ):
        self._reset, self._step = _own_ranks(reset), _own_ranks(step)
        self.num_resets_at_once = num_resets_at_once
        self.render = None if render is None else lambda state: render(state.inner)
        self._types, observation = self._lasting_types(zero_action(action))
        self.spec = EnvironmentSpec(
            jax.tree.map(lambda a: ArraySpec(a.shape, a.dtype), observation),
            action,
            max_episode_steps,
            action_repeat,
        )

    def reset(self, key: Key) -> tuple[AdaptedState, TimeStep]:
        """A new episode, whose first state and later randomness follow from the key."""
        reset_key, key = jax.random.split(key)
        inner, observation = self._reset(reset_key)
        inner, observation = self._cast((inner, observation))
        first = TimeStep(jnp.int8(StepType.FIRST), jnp.float32(0), jnp.float32(1), observation)
        return AdaptedState(inner, key, jnp.int32(0)), first

    def step(self, state: AdaptedState, action: Array) -> tuple[AdaptedState, TimeStep]:
        """One step; LAST with discount 0 if terminated, LAST with discount 1 if truncated only."""
        moment = self._step(jax.random.fold_in(state.key, state.time), state.inner, action)
        inner, observation = self._cast((moment.state, moment.observation))
        terminated = jnp.asarray(moment.terminated, bool)
        timestep = TimeStep(
            step_type=jnp.where(
                terminated | moment.truncated, jnp.int8(StepType.LAST), jnp.int8(StepType.MID)
            ),
            reward=strong(moment.reward, np.float32),
            discount=jnp.where(terminated, jnp.float32(0), jnp.float32(1)),
            observation=observation,
        )
        return AdaptedState(inner, state.key, state.time + 1), timestep

    def _cast(self, tree: Any) -> Any:
        return jax.tree.map(strong, tree, self._types)

    def _lasting_types(self, action: np.ndarray) -> tuple[Any, Any]:
        """dtypes that hold what reset and step return, and the shapes of an observation.

        Suites start some fields as weak or whole numbers that a step turns into others.
        """
        key = jax.random.key(0, impl="threefry2x32")
        start = jax.eval_shape(self._reset, key)
        types = jax.tree.map(lambda a: a.dtype, start)
        for _ in range(3):
            moment = jax.eval_shape(self._step, key, start[0], action)
            types = jax.tree.map(
                lambda a, b: _wider(a.dtype, b.dtype), start, (moment.state, moment.observation)
            )
            start = jax.tree.map(lambda a, dtype: jax.ShapeDtypeStruct(a.shape, dtype), start, types)
        return types, start[1]


def strong(value: Any, dtype: Any) -> Array:
    """`value` as an array of exactly this dtype, never weakly typed; a typed key stays as it is."""
    return value if _is_key(dtype) else jax.lax.convert_element_type(value, np.dtype(dtype))


def copied(tree: Any) -> Any:
    """The same arrays in a structure of its own, for a suite that writes into what it is given."""
    return jax.tree.map(lambda leaf: leaf, tree)


def zero_action(action: ActionSpec) -> np.ndarray:
    """The action of zeros that a spec allows."""
    if isinstance(action, BoundedAction):
        return np.zeros(action.shape, np.float32)
    return np.zeros(np.shape(action.num_values), np.int32)


def one_hot_channels(grid: Array, sizes: Sequence[int]) -> Array:
    """Whole numbers [..., C], channel c in 0..sizes[c] - 1, as bool [..., sum(sizes)]."""
    return jnp.concatenate(
        [jax.nn.one_hot(grid[..., c], size, dtype=bool) for c, size in enumerate(sizes)], axis=-1
    )


def check_whole(subject: str, value: int, minimum: int) -> None:
    """Refuses a setting that is no whole number, below `minimum`, or that int32 does not hold.

    Raises:
      UserError: naming the setting.
    """
    if type(value) is not int:
        raise UserError(subject, expected="a whole number", found=repr(value))
    if not minimum <= value < 2**31:
        expected = f">= {minimum}" if value < minimum else "less than 2^31"
        raise UserError(subject, expected=expected, found=str(value))


def _own_ranks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Rank promotion inside a suite is the suite's business."""

    def run(*args: Any) -> Any:
        with jax.numpy_rank_promotion("allow"):
            return function(*args)

    return run


def _wider(before: Any, after: Any) -> Any:
    return before if _is_key(before) else np.promote_types(before, after)


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)
