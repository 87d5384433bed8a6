"""Adapter of jumanji (https://github.com/instadeepai/jumanji).

Most of jumanji's environments give a time limit the discount 0 of a termination. The adapter asks each step
what it would say without the limit: an end that stays is a termination, one that goes is a truncation.

- Actions: a mask over all combinations of the parts of an action, or no mask, makes one discrete action of
  all combinations (the last part counts fastest); a mask for each part makes it multi-discrete.
- Several agents in one environment are one agent here: it chooses for all and earns the sum of their rewards,
  as in jumanji's own wrapper for that purpose.
- Observations are nested dicts with jumanji's names and dtypes; `action_mask` is flat.

Settings are the arguments of the environment's constructor (`time_limit`, ...), under their own names.
Sokoban is not here: its levels are downloaded.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jax.numpy as jnp
import jumanji  # pyright: ignore[reportMissingImports]
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.settings import check_settings, signature_settings
from zerocopy_envs.suite_adapter import AdaptedEnvironment, Moment, copied
from zerocopy_envs.types import ActionSpec, Array, BoundedAction, DiscreteAction, Key, MultiDiscreteAction

_NEVER = np.iinfo(np.int32).max


def make_environment(name: str, **settings: Any) -> AdaptedEnvironment:
    """The `jumanji` suite's factory.

    Args:
      name: jumanji's name, such as `Snake-v1`.
      **settings: arguments of the environment's constructor.

    Raises:
      UserError: an unknown setting, with the nearest one there is, or a value that jumanji refuses.
    """
    full_name = f"jumanji:{name}"
    environment: Any = jumanji.make(name)
    check_settings(full_name, settings, signature_settings(type(environment)) or {})
    if settings:
        try:
            environment = jumanji.make(name, **settings)
        except (AssertionError, TypeError, ValueError) as error:
            raise UserError(
                f"{full_name}: settings {settings}",
                expected="values that jumanji accepts",
                found=f"{type(error).__name__}: {error}",
            ) from error
    limit = getattr(environment, "time_limit", None)
    endless = copy.copy(environment)
    endless.time_limit = _NEVER
    sizes, joint = _read_actions(environment)

    def reset(key: Key) -> tuple[Any, Any]:
        state, timestep = environment.reset(key)
        return state, _observation(timestep.observation)

    def step(key: Key, state: Any, action: Array) -> Moment:
        if joint:
            action = jnp.stack(jnp.unravel_index(action, sizes)).astype(jnp.int32)
        # Some of jumanji's steps write into the state that they are given.
        terminated = timestep_of(endless, copied(state), action).last() if limit else None
        after, timestep = environment.step(copied(state), action)
        return Moment(
            after,
            _observation(timestep.observation),
            jnp.sum(timestep.reward),
            timestep.last() if terminated is None else terminated,
            timestep.last(),
        )

    def timestep_of(environment: Any, state: Any, action: Array) -> Any:
        return environment.step(state, action)[1]

    return AdaptedEnvironment(reset, step, _action_spec(environment, sizes, joint), limit)


def _read_actions(environment: Any) -> tuple[tuple[int, ...], bool]:
    """Sizes of an action's parts, none where it is continuous; whether they become one discrete action."""
    spec = environment.action_spec
    mask = getattr(environment.observation_spec, "action_mask", None)
    if hasattr(spec, "num_values"):
        sizes = tuple(int(size) for size in np.atleast_1d(spec.num_values))
    elif mask is not None:  # MultiCVRP, whose bound is one more than there are nodes
        sizes = (mask.shape[1],) * mask.shape[0]
    else:
        return (), False
    return sizes, len(spec.shape) == 1 and (mask is None or mask.shape == sizes)


def _action_spec(environment: Any, sizes: tuple[int, ...], joint: bool) -> ActionSpec:
    if not sizes:
        return BoundedAction(environment.action_spec.shape)
    if joint or not environment.action_spec.shape:
        return DiscreteAction(int(np.prod(sizes)))
    return MultiDiscreteAction(sizes)


def _observation(observation: Any) -> Any:
    """jumanji's tuples and dataclasses as dicts, and the mask as agents want it."""
    if hasattr(observation, "_asdict"):
        parts = observation._asdict()
    elif dataclasses.is_dataclass(observation):
        parts = {field.name: getattr(observation, field.name) for field in dataclasses.fields(observation)}
    else:
        return observation
    tree = {name: _observation(part) for name, part in parts.items()}
    if "action_mask" in tree:
        tree["action_mask"] = jnp.reshape(tree["action_mask"], -1)
    return tree
