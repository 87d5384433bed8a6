"""Any registered Gymnasium environment as a host environment: `gymnasium:CartPole-v1`. Imports no JAX."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from zerocopy_envs.errors import UserError
from zerocopy_envs.host_steps import check_actions, check_num_envs, check_seeds, make_timestep
from zerocopy_envs.settings import check_settings, signature_settings
from zerocopy_envs.types import (
    ActionSpec,
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
    TimeStep,
)

Convert = Callable[[Any], Any]

# What has no 64-bit or unsigned counterpart on an accelerator becomes float32 or int32.
_KEPT = ("bool", "int8", "uint8", "int32", "float32")


class GymnasiumEnvironment:
    """`num_envs` copies of a Gymnasium environment, stepped one after the other in this thread.

    Observations: dicts and tuples keep their names and order, numbers become float32 or int32 (8-bit ones
    stay), integers out of a `Discrete` or `MultiDiscrete` space become one-hot float32 vectors. An entry
    `action_mask` of a dict becomes bool; masks that come in `info` are left out. Actions: discrete and
    multi-discrete ones count from 0 whatever the space's `start`, boxes are scaled from [-1, 1].

    Args:
      name: full name, for messages.
      make_one: makes one copy.
      num_envs: how many.
    """

    def __init__(self, name: str, make_one: Callable[[], gymnasium.Env], num_envs: int):
        self._name = name
        # Without a copy: every observation is converted into arrays of its own.
        self._environments = SyncVectorEnv(
            [make_one] * num_envs, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP
        )
        _require_next_step(name, self._environments.metadata.get("autoreset_mode"))
        action, self._convert_action = read_action_space(name, self._environments.single_action_space)
        observation, self._convert = read_observation_space(name, self._environments.single_observation_space)
        registered = self._environments.envs[0].spec
        limit = registered.max_episode_steps if registered else None
        self.spec = EnvironmentSpec(observation, action, limit)
        self.num_envs = num_envs
        modes = {copy.render_mode for copy in self._environments.envs}
        self.render = self._render if modes == {"rgb_array"} else None
        self._slots = np.arange(num_envs)
        self._ended = np.zeros(num_envs, bool)
        self._timestep: TimeStep | None = None

    def reset(self, seeds: Sequence[int]) -> TimeStep:
        """FIRST timesteps [N]; all that follows in slot i comes from `seeds[i]` and its actions."""
        observation, _ = self._environments.reset(seed=[*check_seeds(self._name, seeds, self.num_envs)])
        self._ended, self._timestep = np.zeros(self.num_envs, bool), None
        nothing = np.zeros(self.num_envs)
        return make_timestep(
            np.ones(self.num_envs, bool), nothing, self._ended, self._ended, self._convert(observation)
        )

    def send(self, actions: np.ndarray) -> None:
        """Steps every slot; see `HostEnvironment`."""
        actions = check_actions(self._name, self.spec.action, actions, self.num_envs)
        first = self._ended
        observation, reward, terminated, truncated, _ = self._environments.step(self._convert_action(actions))
        self._ended = terminated | truncated
        self._timestep = make_timestep(first, reward, terminated, truncated, self._convert(observation))

    def recv(self) -> tuple[np.ndarray, TimeStep]:
        """All slots and their timesteps [N]."""
        timestep, self._timestep = self._timestep, None
        if timestep is None:
            raise UserError(f"{self._name}: recv", expected="a send before it")
        return self._slots.copy(), timestep

    def _render(self) -> np.ndarray:
        """What every slot looks like now, uint8 [N, H, W, 3]."""
        return np.stack([np.asarray(copy.render(), np.uint8) for copy in self._environments.envs])

    def close(self) -> None:
        """Closes every copy."""
        self._environments.close()


def make_environment(name: str, *, num_envs: int = 1, **settings: Any) -> GymnasiumEnvironment:
    """The `gymnasium` suite's factory.

    Args:
      name: an id that Gymnasium has registered, or `module:id`, which imports the module that registers it.
        Ids that begin with `ALE/` need no module.
      num_envs: copies.
      **settings: arguments of the environment's constructor, and `max_episode_steps`.

    Raises:
      UserError: an unknown id or setting, with the nearest right one; a space that has no counterpart here.
    """
    full_name = f"gymnasium:{name}"
    check_num_envs(full_name, num_envs)
    module, colon, identifier = name.rpartition(":")
    if colon:
        importlib.import_module(module)
    if identifier.startswith("ALE/"):
        try:
            import ale_py
        except ImportError as error:
            raise UserError(
                f"environment {full_name!r}",
                expected="ale-py to be installed",
                remedy='pip install "zerocopy_seed[atari]"',
            ) from error
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        gymnasium.register_envs(ale_py)  # a spawned process has imported nothing else that would
    registered = gymnasium.registry.get(identifier)
    if registered is None:
        raise UserError(
            f"environment {full_name!r}",
            expected="an id that Gymnasium has registered",
            remedy=_nearest_id(identifier),
        )
    creator = registered.entry_point
    if creator is None:
        raise UserError(f"environment {full_name!r}", expected="one that Gymnasium can make singly")
    arguments = signature_settings(load_env_creator(creator) if isinstance(creator, str) else creator)
    if arguments is not None:
        defaults = {**arguments, **registered.kwargs, "max_episode_steps": None}
        check_settings(full_name, settings, defaults)

    def make_one() -> gymnasium.Env:
        # The checker warns about style on every first step; the conformance check is stricter.
        return gymnasium.make(identifier, disable_env_checker=True, **settings)

    return GymnasiumEnvironment(full_name, make_one, num_envs)


def _nearest_id(identifier: str) -> str:
    """The right version of the same name before the nearest name."""
    ids = list(gymnasium.registry)
    same = [other for other in ids if other.rpartition("-v")[0] == identifier.rpartition("-v")[0]]
    near = same[-1:] or difflib.get_close_matches(identifier, ids, n=1)
    return f"did you mean {near[0]}?" if near else "import the package that registers it: gymnasium:MODULE:ID"


def _require_next_step(name: str, mode: Any) -> None:
    if mode != AutoresetMode.NEXT_STEP:
        raise UserError(
            f"environment {name!r}", expected="Gymnasium's autoreset mode NEXT_STEP", found=str(mode)
        )


def read_action_space(name: str, space: spaces.Space) -> tuple[ActionSpec, Convert]:
    """The spec, and what makes Gymnasium's actions of a batch of ours."""
    if isinstance(space, spaces.Discrete):
        start, dtype = space.start, space.dtype
        return DiscreteAction(int(space.n)), lambda actions: actions.astype(dtype) + start
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts, kind = tuple(map(int, space.nvec.ravel())), space.start, space.dtype
        return MultiDiscreteAction(sizes), (
            lambda actions: actions.reshape(-1, *starts.shape).astype(kind) + starts
        )
    if isinstance(space, spaces.MultiBinary):
        shape = space.shape
        return MultiDiscreteAction((2,) * int(np.prod(shape))), (
            lambda actions: actions.reshape(-1, *shape).astype(np.int8)
        )
    if isinstance(space, spaces.Box) and space.shape and np.issubdtype(space.dtype, np.floating):
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise UserError(f"environment {name!r}: action space", expected="finite bounds", found=str(space))
        low, high, float_dtype = space.low, space.high, space.dtype
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        return BoundedAction(space.shape), (
            lambda actions: np.clip(middle + half * actions, low, high).astype(float_dtype)
        )
    raise UserError(
        f"environment {name!r}: action space",
        expected="Discrete, MultiDiscrete, MultiBinary or a Box of floats",
        found=str(space),
    )


def read_observation_space(name: str, space: spaces.Space, path: str = "observation") -> tuple[Any, Convert]:
    """The spec, and what makes our arrays, always new ones, of a batch of Gymnasium's."""
    if isinstance(space, spaces.Dict):
        inner = {key: read_observation_space(name, space[key], f"{path}.{key}") for key in space.spaces}
        if path == "observation" and "action_mask" in inner:
            shape = space["action_mask"].shape or ()
            inner["action_mask"] = ArraySpec(shape, np.bool_), lambda mask: np.array(mask, np.bool_)
        return {key: spec for key, (spec, _) in inner.items()}, lambda batch: {
            key: convert(batch[key]) for key, (_, convert) in inner.items()
        }
    if isinstance(space, spaces.Tuple):
        items = [read_observation_space(name, item, f"{path}[{i}]") for i, item in enumerate(space.spaces)]
        return tuple(spec for spec, _ in items), lambda batch: tuple(
            convert(part) for (_, convert), part in zip(items, batch, strict=True)
        )
    if isinstance(space, spaces.Discrete):
        return _one_hot((int(space.n),), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(tuple(map(int, space.nvec.ravel())), space.start.ravel())
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, np.int8, 0, 1), lambda batch: np.array(batch, np.int8)
    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype)
        if dtype.name not in _KEPT:
            dtype = np.dtype(np.float32 if dtype.kind == "f" else np.int32)
        spec = ArraySpec(space.shape, dtype, _bound(space.low.min()), _bound(space.high.max()))
        return spec, lambda batch: np.array(batch, dtype)
    raise UserError(
        f"environment {name!r}: {path}",
        expected="Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple",
        found=str(space),
    )


def _one_hot(sizes: tuple[int, ...], starts: np.ndarray) -> tuple[ArraySpec, Convert]:
    """Integers [N] or [N, ...] as one float32 vector [N, sum(sizes)]."""
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - starts

    def convert(batch: np.ndarray) -> np.ndarray:
        hot = np.zeros((len(batch), sum(sizes)), np.float32)
        np.put_along_axis(hot, batch.reshape(len(batch), -1) + offsets, 1, axis=1)
        return hot

    return ArraySpec((sum(sizes),), np.float32, 0, 1), convert


def _bound(value: Any) -> float | None:
    """A limit that means something; some spaces write infinity as the largest number."""
    limit = float(value)
    return limit if abs(limit) < float(np.finfo(np.float32).max) else None
