"""Adapter of MuJoCo Playground 0.2.0 (https://github.com/google-deepmind/mujoco_playground).

Only the DeepMind Control Suite of it: the robots of its locomotion and manipulation are not in the package,
which downloads them when such an environment is made. The physics is MJX in JAX unless the setting `impl`
says "warp", which needs an NVIDIA GPU. Playground's own wrappers, which add time limits and restart
episodes from the same state, are not used: each episode has a random start of its own, from its key. Its
pictures are not offered.
"""

from __future__ import annotations

import warnings
from typing import Any

from zerocopy_envs.brax_interface import BraxInterface
from zerocopy_envs.settings import check_settings
from zerocopy_envs.suite_adapter import check_whole

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # brax and jaxopt, which it imports, are no longer maintained
    from mujoco_playground import dm_control_suite  # pyright: ignore[reportMissingImports]

# Ours have other names, or need a renderer on the GPU.
_NOT_SETTINGS = ("episode_length", "action_repeat", "vision")


def make_environment(
    name: str, *, max_episode_steps: int = 0, action_repeat: int = 1, **settings: Any
) -> BraxInterface:
    """The `playground` suite's factory.

    Args:
      name: Playground's name, such as `CartpoleBalance`.
      max_episode_steps: the time limit, in steps of the agent; 0 for Playground's own.
      action_repeat: Playground's steps for each of the agent's.
      **settings: single values of the environment's configuration (`ctrl_dt`, `sim_dt`, `impl`, ...).

    Raises:
      UserError: an unknown setting, with the nearest one there is, or a value that is out of range.
    """
    full_name = f"playground:{name}"
    config: Any = dm_control_suite.get_default_config(name)
    own = {
        key: value
        for key, value in config.items()
        if isinstance(value, bool | int | float | str) and key not in _NOT_SETTINGS
    }
    common = {"max_episode_steps": max_episode_steps, "action_repeat": action_repeat}
    check_settings(full_name, common, {"max_episode_steps": 0, "action_repeat": 1})
    check_settings(full_name, settings, {**own, **common})
    max_episode_steps = max_episode_steps or int(config.episode_length)
    check_whole(f"{full_name}: setting 'max_episode_steps'", max_episode_steps, 1)
    check_whole(f"{full_name}: setting 'action_repeat'", action_repeat, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        environment = dm_control_suite.load(name, config_overrides={"impl": "jax", **settings})
    return BraxInterface(environment, "data", max_episode_steps, action_repeat)
