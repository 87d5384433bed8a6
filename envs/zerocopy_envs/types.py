"""Timesteps, specs and the two environment protocols. Imports no JAX.

The semantics are dm_env's (arXiv:2006.12983 lists its API), with next-step autoreset:

- FIRST opens an episode: `reward` is 0, `discount` is 1.
- LAST closes it with the true final observation. `discount` is 0 if the episode terminated and 1 if it
  was truncated (a time limit), so truncation bootstraps from what is really there.
- The step after a LAST ignores its action and returns the FIRST of a new episode.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any  # a numpy or JAX array: this module must not import JAX
Key = Any  # a typed JAX PRNG key (threefry)
EnvState = Any  # a pytree of arrays, private to its environment


class StepType(enum.IntEnum):
    """Where a timestep stands in its episode."""

    FIRST = 0
    MID = 1
    LAST = 2


class TimeStep(NamedTuple):
    """What an environment returns; fields carry leading batch (and time) dimensions where there are many.

    Attributes:
      step_type: int8, a `StepType`.
      reward: float32, what the previous action earned; 0 at FIRST.
      discount: float32, 1, or 0 if and only if the episode terminated here.
      observation: a pytree of arrays that fits the spec; at LAST the true final observation.
    """

    step_type: Array
    reward: Array
    discount: Array
    observation: Any


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """One array of an observation: shape without batch dimensions, dtype, inclusive bounds where known."""

    shape: tuple[int, ...]
    dtype: Any  # whatever np.dtype takes; the attribute is an np.dtype
    minimum: float | None = None
    maximum: float | None = None

    def __post_init__(self):
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))


@dataclasses.dataclass(frozen=True)
class DiscreteAction:
    """One int32 action in 0..num_values - 1, shape []."""

    num_values: int


@dataclasses.dataclass(frozen=True)
class MultiDiscreteAction:
    """Several int32 actions at once, shape [len(num_values)], head i in 0..num_values[i] - 1."""

    num_values: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class BoundedAction:
    """A float32 vector of `shape`, every entry in [-1, 1]; adapters scale it to what the simulator wants."""

    shape: tuple[int, ...]


ActionSpec = DiscreteAction | MultiDiscreteAction | BoundedAction


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
    """What an agent must know of an environment.

    Attributes:
      observation: a pytree (nested dicts, tuples) whose leaves are `ArraySpec`. A top-level dict entry
        named `action_mask` (bool, [A] for discrete, [sum of heads] for multi-discrete) marks legal actions.
      action: shape and kind of an action.
      max_episode_steps: longest possible episode, or None if episodes may go on for ever.
      action_repeat: frames that pass for one action.
    """

    observation: Any
    action: ActionSpec
    max_episode_steps: int | None = None
    action_repeat: int = 1


class Environment(Protocol):
    """A single episode of a JAX environment: pure, unbatched, never resets itself.

    `step` after a LAST is undefined; `wrappers.Vectorized` turns any of these into many that reset.
    Randomness lives in the state, which keeps a key. `reset` and `step` return identical types
    (shapes, dtypes, no weak types), so that a scan over `step` compiles once. One that can be drawn also has
    `render(state) -> uint8 [H, W, 3]`; None there says that it cannot.
    """

    @property
    def spec(self) -> EnvironmentSpec: ...

    def reset(self, key: Key) -> tuple[EnvState, TimeStep]: ...

    def step(self, state: EnvState, action: Array) -> tuple[EnvState, TimeStep]: ...


class HostEnvironment(Protocol):
    """Many environments on the CPU, in numpy, that reset themselves on the step after a LAST.

    `send` starts a step of every slot that `recv` last returned; `recv` waits for some of them.
    `reset(seeds)` takes one seed per slot and returns the FIRST timesteps [N]. Arrays that `reset` and `recv`
    return are the caller's: no later call writes into them. `close` frees what it holds. A factory takes the
    number of environments as `num_envs`. One that can be drawn also takes `render_mode`, and asked for
    "rgb_array" makes environments with a method `render() -> uint8 [N, H, W, 3]`, the slots as they are now.
    """

    @property
    def spec(self) -> EnvironmentSpec: ...

    @property
    def num_envs(self) -> int: ...

    def reset(self, seeds: Sequence[int]) -> TimeStep: ...

    def send(self, actions: np.ndarray) -> None: ...

    def recv(self) -> tuple[np.ndarray, TimeStep]: ...

    def close(self) -> None: ...
