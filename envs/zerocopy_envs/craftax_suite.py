"""Adapter of craftax (https://github.com/MichaelTMatthews/Craftax).

craftax ends an episode at death, in lava (Classic), when the boss is beaten (full) and at `max_timesteps`;
only the last is a truncation. A world costs as much as several steps, and of many slots some need one nearly
always, so worlds are made for the slots that need one alone, see `wrappers.Vectorized`; every episode has its
own.

Pictures come as uint8, symbols as craftax has them: float32 in a flat vector. Settings are the fields of the
environment's parameters and of its static parameters (`map_size`, `max_cows`, ...), under their own names.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name  # pyright: ignore[reportMissingImports]

from zerocopy_envs.settings import check_settings
from zerocopy_envs.suite_adapter import AdaptedEnvironment, Moment, check_whole
from zerocopy_envs.types import Array, DiscreteAction, Key

_NUM_RESETS_AT_ONCE = 8
_NEVER = np.iinfo(np.int32).max


def make_environment(name: str, **settings: Any) -> AdaptedEnvironment:
    """The `craftax` suite's factory.

    Args:
      name: craftax's name, such as `Craftax-Classic-Symbolic-v1`.
      **settings: fields of the environment's `EnvParams` and `StaticEnvParams`.

    Raises:
      UserError: an unknown setting, with the nearest one there is.
    """
    full_name = f"craftax:{name}"
    environment: Any = make_craftax_env_from_name(name, auto_reset=False)
    fixed, params = environment.default_static_params(), environment.default_params
    defaults = {**_fields(fixed), **_fields(params)}
    check_settings(full_name, settings, defaults)
    fixed = fixed.replace(**{key: value for key, value in settings.items() if key in _fields(fixed)})
    params = params.replace(**{key: value for key, value in settings.items() if key in _fields(params)})
    check_whole(f"{full_name}: setting 'max_timesteps'", params.max_timesteps, 1)
    environment = type(environment)(fixed)
    endless = params.replace(max_timesteps=_NEVER)
    pixels = "Pixels" in name

    def observe(observation: Array) -> Array:
        return jnp.round(observation * 255).astype(jnp.uint8) if pixels else observation

    def reset(key: Key) -> tuple[Any, Any]:
        observation, state = environment.reset_env(key, params)
        return state, observe(observation)

    def step(key: Key, state: Any, action: Array) -> Moment:
        observation, state, reward, ended, _ = environment.step_env(key, state, action, params)
        return Moment(state, observe(observation), reward, environment.is_terminal(state, endless), ended)

    return AdaptedEnvironment(
        reset,
        step,
        DiscreteAction(environment.num_actions),
        params.max_timesteps,
        num_resets_at_once=_NUM_RESETS_AT_ONCE,
    )


def _fields(params: Any) -> dict[str, Any]:
    return {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
