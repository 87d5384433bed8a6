"""The values that cross the program's seams. Imports no JAX.

`T` is the unroll length, `B` a batch of unrolls (one per slot), `A` the number of discrete actions.
Everything here is a NamedTuple: a pytree that passes through jit, vmap, scan and shard_map.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zerocopy_envs.types import StepType, TimeStep

Array = Any  # a JAX array: this module must not import JAX
Key = Any  # a typed threefry PRNG key


class Mode(enum.Enum):
    """Which policy `act` follows; static under jit."""

    TRAIN = "train"
    EVALUATE = "evaluate"


def valid_transitions(step_type: Array) -> Array:
    """Which transitions t -> t+1 are real: step types [T+1, ...] -> [T, ...] bool, False where t+1 is FIRST.

    Others carry no loss, no entropy, no priority and no count, and cut every trace.
    """
    return step_type[1:] != StepType.FIRST


def split_action_mask(observation: Any) -> tuple[Any, Any]:
    """An observation (or its spec) without the top-level `action_mask`, and the mask or None."""
    if isinstance(observation, Mapping) and "action_mask" in observation:
        rest = {name: leaf for name, leaf in observation.items() if name != "action_mask"}
        return rest, observation["action_mask"]
    return observation, None


class Counter(NamedTuple):
    """A 64-bit count as two uint32 words, since JAX has no 64-bit integers by default."""

    high: Array
    low: Array


class RecurrentState(NamedTuple):
    """What an agent remembers of the past, [B, ...]; `act` and the learner's unroll reset it at FIRST.

    Attributes:
      core: the recurrent core's state, a pytree [B, ...]; () without a core.
      frames: the `frame_stack - 1` observations before this one, a pytree [B, frame_stack - 1, ...], oldest
        first; () without stacking. Zeros where the episode had not begun.
      last_action: [B] or [B, heads] int32, or [B, *shape] float32 for bounded actions, as the environment
        took them; -1 (float: 0) at FIRST.
    """

    core: Any
    frames: Any
    last_action: Array


class Exploration(NamedTuple):
    """A slot's own randomness: `key` [B] typed keys, `epsilon` [B] float32 or () where there is none."""

    key: Key
    epsilon: Any = ()


class AgentState(NamedTuple):
    """All that acting carries from step to step, one row per slot."""

    recurrent: RecurrentState
    exploration: Exploration


class ActingParams(NamedTuple):
    """All that acting reads: network parameters and normaliser statistics."""

    network: Any
    statistics: Any = ()


class Trajectory(NamedTuple):
    """Unrolls, time-major: what `learn` receives.

    Attributes:
      timestep: [T+1, B, ...]; row T only bootstraps.
      action: [T, B], or [T, B, heads], or [T, B, *shape], as the environment took it.
      actor_output: [T, B, ...] what the behaviour policy said.
      recurrent: [B, ...] recurrent state entering row 0.
      slot: [B] int32, where the unroll came from.
      continues: [B] bool, row 0 follows this slot's previous unroll without a gap.
    """

    timestep: TimeStep
    action: Array
    actor_output: Any
    recurrent: RecurrentState
    slot: Array
    continues: Array


class LearnerState(NamedTuple):
    """All that learning needs, and nothing else remembers.

    Attributes:
      params: what the optimiser changes; an agent's own pytree.
      opt_state: the optimiser's state.
      target: target network parameters, or ().
      replay: replay buffer with priorities, or ().
      statistics: running statistics, or ().
      key: one typed key.
      env_steps: `Counter` of valid transitions learned from.
      num_updates: `Counter` of `learn` calls.
      settings: dict of float32 scalars: the settings that a sweep may vary.
    """

    params: Any
    opt_state: Any
    target: Any
    replay: Any
    statistics: Any
    key: Key
    env_steps: Counter
    num_updates: Counter
    settings: dict[str, Array]


class Agent(NamedTuple):
    """An algorithm as pure functions; nothing in them jits, logs, or reads a clock.

    Attributes:
      init: key -> LearnerState
      acting: LearnerState -> ActingParams
      initial_state: keys [B], slots [B] int32 -> AgentState
      act: ActingParams, AgentState, TimeStep [B], Mode -> action, actor_output, AgentState
      learn: LearnerState, Trajectory -> LearnerState, metrics (dict of float32 scalars)
      store: LearnerState, Trajectory -> LearnerState: remembers unrolls, each slot's at most once, without
        learning; None for an agent that learns from the batch at hand alone
      begin_from: LearnerState, ActingParams -> LearnerState with the parameters of another run; None for an
        agent that cannot
    """

    init: Callable[[Key], LearnerState]
    acting: Callable[[LearnerState], ActingParams]
    initial_state: Callable[[Key, Array], AgentState]
    act: Callable[..., tuple[Array, Any, AgentState]]
    learn: Callable[[LearnerState, Trajectory], tuple[LearnerState, dict[str, Array]]]
    store: Callable[[LearnerState, Trajectory], LearnerState] | None = None
    begin_from: Callable[[LearnerState, ActingParams], LearnerState] | None = None
