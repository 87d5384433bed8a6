"""EnvPool, whose C++ threads step: `envpool:Pong-v5`. Uses no JAX, though EnvPool itself imports it."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from typing import Any

import envpool  # pyright: ignore[reportMissingImports]
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.gymnasium_suite import read_action_space, read_observation_space
from zerocopy_envs.host_steps import check_actions, check_num_envs, check_seeds, make_timestep
from zerocopy_envs.settings import check_settings
from zerocopy_envs.types import ArraySpec, EnvironmentSpec, TimeStep

_LARGEST_SEED = 2**31 - 1
_OURS = {"stack_num": 1, "use_fire_reset": False}
"""Defaults for Atari: single frames, which the learner stacks, and a start button that the agent presses."""
_NOT_SETTINGS = ("num_envs", "batch_size", "max_num_players", "base_path", "seed", "env_seed")


class EnvPoolEnvironment:
    """`num_envs` copies of an EnvPool environment, which all step at once.

    Spaces are read as those of Gymnasium are; single grey frames [1, H, W] lose their first axis.

    Args:
      task: EnvPool's name of it.
      num_envs: how many.
      settings: EnvPool's.
    """

    def __init__(self, task: str, num_envs: int, settings: dict[str, Any]):
        self._name = f"envpool:{task}"
        self._task, self._settings = task, settings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about bounds that float32 rounds
            spec = envpool.make_spec(task, **settings)
            observation_space, action_space = spec.gymnasium_observation_space, spec.gymnasium_action_space
        action, self._convert_action = read_action_space(self._name, action_space)
        observation, self._convert = read_observation_space(self._name, observation_space)
        self._drops_axis = (
            settings.get("stack_num") == 1 and len(observation.shape) == 3 and observation.shape[0] == 1
        )
        if self._drops_axis:
            observation = ArraySpec(
                observation.shape[1:], observation.dtype, observation.minimum, observation.maximum
            )
        repeat, limit = getattr(spec.config, "frame_skip", 1), spec.config.max_episode_steps
        self.spec = EnvironmentSpec(observation, action, limit if limit < _LARGEST_SEED else None, repeat)
        self.num_envs = num_envs
        self._pool: Any = None
        self._pending = False

    def reset(self, seeds: Sequence[int]) -> TimeStep:
        """FIRST timesteps [N] of a new pool, since EnvPool takes seeds only when it is made."""
        whole = [seed % _LARGEST_SEED for seed in check_seeds(self._name, seeds, self.num_envs)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pool = envpool.make(
                self._task, env_type="gymnasium", num_envs=self.num_envs, seed=whole, **self._settings
            )
            _ = self._pool.observation_space, self._pool.action_space  # made, with a warning, when first read
        observation, _ = self._pool.reset()
        self._pending, self._ended = False, np.zeros(self.num_envs, bool)
        nothing = np.zeros(self.num_envs)
        return make_timestep(~self._ended, nothing, self._ended, self._ended, self._arrays(observation))

    def send(self, actions: np.ndarray) -> None:
        """Starts a step of every slot in EnvPool's threads."""
        if self._pool is None or self._pending:
            raise UserError(f"{self._name}: send", expected="a reset or recv before it")
        actions = check_actions(self._name, self.spec.action, actions, self.num_envs)
        self._pool.send(self._convert_action(actions))
        self._pending = True

    def recv(self) -> tuple[np.ndarray, TimeStep]:
        """All slots and their timesteps [N], once every slot has stepped."""
        if not self._pending:
            raise UserError(f"{self._name}: recv", expected="a send before it")
        observation, reward, terminated, truncated, information = self._pool.recv()
        self._pending = False
        slots = np.array(information["env_id"])
        first = self._ended[slots]
        self._ended[slots] = terminated | truncated
        return slots, make_timestep(first, reward, terminated, truncated, self._arrays(observation))

    def close(self) -> None:
        """Ends EnvPool's threads."""
        self._pool, self._pending = None, False

    def _arrays(self, observation: Any) -> Any:
        arrays = self._convert(observation)
        return arrays[:, 0] if self._drops_axis else arrays


def make_environment(task: str, *, num_envs: int = 1, **settings: Any) -> EnvPoolEnvironment:
    """The `envpool` suite's factory.

    Args:
      task: one of `envpool.list_all_envs()`.
      num_envs: copies.
      **settings: of the task's configuration in EnvPool, and its defaults but for Atari's: `stack_num` is 1,
        since the learner stacks frames, and `use_fire_reset` is off.

    Raises:
      UserError: an unknown task or setting, with the nearest right one; a space that has no counterpart here.
    """
    name = f"envpool:{task}"
    check_num_envs(name, num_envs)
    if task not in envpool.list_all_envs():
        near = difflib.get_close_matches(task, envpool.list_all_envs(), n=1)
        raise UserError(
            f"environment {name!r}",
            expected="one of envpool.list_all_envs()",
            remedy=f"did you mean {near[0]}?" if near else "",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        defaults = envpool.make_spec(task).config._asdict()
    defaults = {key: value for key, value in defaults.items() if key not in _NOT_SETTINGS}
    check_settings(name, settings, defaults)
    ours = {key: value for key, value in _OURS.items() if key in defaults}
    return EnvPoolEnvironment(task, num_envs, {**ours, **settings})
