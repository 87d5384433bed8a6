"""Adapter of gymnax 1.0.1 (https://github.com/RobertTLange/gymnax).

Only gymnax's non-resetting `step_env` and `reset_env` are used. gymnax tells the two ends of an episode
apart, and so does the adapter:

- terminated: what `step_env` returns, the environment's own reason. It wins where the time limit falls on the
  same step (DeepSea always ends so). MemoryChain and UmbrellaChain end their chains this way, SimpleBandit
  after its one step. MetaMaze never ends at its goal, it moves the agent; gymnax reports a termination in the
  rare case that the agent lands on the goal again.
- truncated: `is_truncated`, `time >= max_steps_in_episode`. So Pendulum, DiscountingChain, Freeway-MinAtar,
  both bandits of `misc`, PointRobot, Reacher and Swimmer are only ever truncated, as gymnax has it.

Observations are float32; FrozenLake's single integer becomes a one-hot vector. Settings are the fields of
the environment's parameters and the arguments of its constructor, under their own names.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.deferred_plotting import deferred_plotting
from zerocopy_envs.errors import UserError
from zerocopy_envs.gymnax_drawing import DRAWINGS
from zerocopy_envs.settings import check_settings, signature_settings
from zerocopy_envs.suite_adapter import strong
from zerocopy_envs.types import (
    ActionSpec,
    Array,
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    Key,
    StepType,
    TimeStep,
)

with deferred_plotting():
    from gymnax import registration
    from gymnax.environments import spaces

# Their observations leave the box that gymnax declares: -1 context bits, negative rewards, times past t_max.
_WRONG_BOUNDS = ("MemoryChain-bsuite", "GaussianBandit-misc", "BernoulliBandit-misc", "MetaMaze-misc")

# A task that pays only at its end: (the setting that says when, steps past it).
_PAYS_AT = {"MemoryChain-bsuite": ("memory_length", 1), "UmbrellaChain-bsuite": ("chain_length", 0)}


class GymnaxState(NamedTuple):
    """gymnax's own state, and the episode's key, () where a step draws nothing."""

    inner: Any
    key: Key


class GymnaxEnvironment:
    """One gymnax environment as a `zerocopy_envs.Environment`.

    Args:
      name: gymnax's name of it.
      environment: gymnax's object.
      params: its parameters, fixed at compile time.
    """

    def __init__(self, name: str, environment: Any, params: Any):
        self._environment, self._params = environment, params
        self._low, self._high, action = _read_action_space(name, environment.action_space(params))
        self._num_positions, observation = _read_observation_space(name, environment, params)
        self.spec = EnvironmentSpec(observation, action, int(params.max_steps_in_episode))
        drawing = DRAWINGS.get(name)
        self.render = None if drawing is None else lambda state: drawing(state.inner)
        self._draws = self._step_draws()
        self._types = self._state_types()

    def reset(self, key: Key) -> tuple[GymnaxState, TimeStep]:
        """A new episode, whose first state and later randomness follow from the key."""
        reset_key = key
        if self._draws:
            reset_key, key = jax.random.split(key)
        observation, inner = self._reset_env(reset_key)
        first = TimeStep(
            jnp.int8(StepType.FIRST), jnp.float32(0), jnp.float32(1), self._observation(observation)
        )
        return GymnaxState(self._cast(inner), key if self._draws else ()), first

    def step(self, state: GymnaxState, action: Array) -> tuple[GymnaxState, TimeStep]:
        """One step; LAST with discount 0 if terminated, LAST with discount 1 if truncated only."""
        # Folding the time into a key that stays costs nothing where the result is unused.
        key = jax.random.fold_in(state.key, jnp.int32(state.inner.time)) if self._draws else None
        observation, inner, reward, terminated, _ = self._step_env(key, state.inner, action)
        terminated = jnp.asarray(terminated, bool)
        ended = terminated | self._environment.is_truncated(inner, self._params)
        timestep = TimeStep(
            step_type=jnp.where(ended, jnp.int8(StepType.LAST), jnp.int8(StepType.MID)),
            reward=strong(reward, np.float32),
            discount=jnp.where(terminated, jnp.float32(0), jnp.float32(1)),
            observation=self._observation(observation),
        )
        return GymnaxState(self._cast(inner), state.key), timestep

    def _reset_env(self, key: Key) -> tuple[Any, Any]:
        return self._environment.reset_env(key, self._params)

    def _step_env(self, key: Key, inner: Any, action: Array) -> tuple[Any, Any, Array, Array, Any]:
        # Swimmer subtracts a vector from a matrix: rank promotion is gymnax's business in here.
        with jax.numpy_rank_promotion("allow"):
            return self._environment.step_env(key, inner, self._action(action), self._params)

    def _action(self, action: Array) -> Array:
        if isinstance(self.spec.action, DiscreteAction):
            return strong(action, np.int32)
        middle, half = (self._high + self._low) / 2, (self._high - self._low) / 2
        return middle + half * jnp.clip(strong(action, np.float32), -1, 1)

    def _observation(self, observation: Any) -> Any:
        if self._num_positions:
            return jax.nn.one_hot(observation, self._num_positions, dtype=jnp.float32)
        return jax.tree.map(lambda leaf: strong(leaf, np.float32), observation)

    def _cast(self, inner: Any) -> Any:
        return jax.tree.map(strong, inner, self._types)

    def _step_draws(self) -> bool:
        """Whether a step uses its key: a step that traces without one draws nothing."""

        def step(reset_key: Key) -> Any:
            return self._step_env(None, self._reset_env(reset_key)[1], self._some_action())[:4]

        try:
            jax.eval_shape(step, jax.random.key(0, impl="threefry2x32"))
        except (TypeError, ValueError, AttributeError):
            return True
        return False

    def _state_types(self) -> Any:
        """dtypes that hold reset's and step's state: gymnax starts some fields as weak or whole numbers."""
        key = jax.random.key(0, impl="threefry2x32")
        start = jax.eval_shape(lambda key: self._reset_env(key)[1], key)
        types = jax.tree.map(lambda a: a.dtype, start)
        for _ in range(3):
            after = jax.eval_shape(lambda *args: self._step_env(*args)[1], key, start, self._some_action())
            types = jax.tree.map(lambda a, b: np.promote_types(a.dtype, b.dtype), start, after)
            start = jax.tree.map(lambda a, dtype: jax.ShapeDtypeStruct(a.shape, dtype), start, types)
        return types

    def _some_action(self) -> Array:
        action = self.spec.action
        return jnp.zeros(action.shape) if isinstance(action, BoundedAction) else jnp.int32(0)


def make_environment(name: str, **settings: Any) -> GymnaxEnvironment:
    """The `gymnax` suite's factory.

    Args:
      name: gymnax's name, such as `CartPole-v1`.
      **settings: fields of the environment's parameters (`max_steps_in_episode`, ...) and arguments of its
        constructor (`memory_length` is the former, Catch's `rows` the latter).

    Raises:
      UserError: an unknown setting, with the nearest one there is, or a value that the environment refuses.
    """
    full_name = f"gymnax:{name}"
    if name not in registration.registered_envs:
        raise UserError(f"environment {full_name!r}", expected="one that the installed gymnax has")
    environment = registration.make(name)[0]
    arguments = signature_settings(type(environment)) or {}
    constructor = {key: value for key, value in settings.items() if key in arguments}
    check_settings(full_name, constructor, arguments)
    if constructor:
        environment = _construct(name, constructor)
    params = environment.default_params
    fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    check_settings(full_name, settings, {**fields, **arguments})
    params = params.replace(
        **{key: _like(fields[key], value) for key, value in settings.items() if key in fields}
    )
    if params.max_steps_in_episode < 1:
        raise UserError(
            f"{full_name}: setting 'max_steps_in_episode'",
            expected=">= 1",
            found=str(params.max_steps_in_episode),
        )
    if name in _PAYS_AT:
        setting, extra = _PAYS_AT[name]
        end = getattr(params, setting) + extra
        if end > params.max_steps_in_episode:
            raise UserError(
                f"{full_name}: setting {setting!r}",
                expected=f"an episode that ends within max_steps_in_episode = {params.max_steps_in_episode}",
                found=f"{end} steps",
                remedy="raise max_steps_in_episode too",
            )
    return GymnaxEnvironment(name, environment, params)


def _construct(name: str, arguments: dict[str, Any]) -> Any:
    try:
        return registration.make(name, **arguments)[0]
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(
            f"gymnax:{name}: settings {arguments}",
            expected="values that gymnax accepts",
            found=f"{type(error).__name__}: {error}",
        ) from error


def _read_action_space(name: str, space: Any) -> tuple[Any, Any, ActionSpec]:
    if isinstance(space, spaces.Discrete):
        return None, None, DiscreteAction(int(space.n))
    if isinstance(space, spaces.Box):
        low, high = (np.broadcast_to(np.asarray(x, np.float32), space.shape) for x in (space.low, space.high))
        return low, high, BoundedAction(tuple(space.shape))
    raise UserError(f"gymnax:{name}", expected="discrete or box actions", found=type(space).__name__)


def _read_observation_space(name: str, environment: Any, params: Any) -> tuple[int, Any]:
    """How many positions a single integer stands for (0: not one), and the spec of the observation."""
    space = environment.observation_space(params)
    if isinstance(space, spaces.Discrete):
        return int(space.n), ArraySpec((space.n,), np.dtype(np.float32), 0.0, 1.0)
    # The shapes come from a reset, since a declared space may be wrong.
    key = jax.random.key(0, impl="threefry2x32")
    observation, _ = jax.eval_shape(lambda key: environment.reset_env(key, params), key)
    minimum, maximum = None, None
    if isinstance(space, spaces.Box) and name not in _WRONG_BOUNDS:
        minimum, maximum = _bound(np.min(space.low)), _bound(np.max(space.high))
    return 0, jax.tree.map(lambda a: ArraySpec(a.shape, np.dtype(np.float32), minimum, maximum), observation)


def _bound(value: Any) -> float | None:
    limit = float(np.float32(value))
    return limit if abs(limit) < float(np.finfo(np.float32).max) else None


def _like(default: Any, value: Any) -> Any:
    if isinstance(default, jax.Array):
        return jnp.asarray(value, default.dtype)
    return float(value) if isinstance(default, float) else value
