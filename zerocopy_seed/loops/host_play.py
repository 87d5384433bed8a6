"""The evaluation policy on environments that step on the host."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import HostEnvironment, StepType, TimeStep
from zerocopy_envs.usable import stand_in, usable
from zerocopy_seed.keys import Stream, as_seeds, slot_keys
from zerocopy_seed.types import ActingParams, Agent, AgentState, Array, Mode

_PROGRESS_EVERY_S = 10.0


def play(
    agent: Agent, environment: HostEnvironment, params: ActingParams, seed: int
) -> Iterator[tuple[np.ndarray, TimeStep]]:
    """Plays for ever: slots [n] and their timesteps [n], as they arrive, beginning with every slot's FIRST.

    Slot i's environment and agent have the keys of slot i of an evaluation on the device; a seed is the key,
    its first word in the upper half.

    Args:
      agent: acts by `Mode.EVALUATE`.
      environment: not yet reset.
      params: what acting reads.
      seed: of the evaluation.
    """
    slots = np.arange(environment.num_envs)
    environment_keys = slot_keys(seed, Stream.EVALUATION_ENVIRONMENT, jnp.asarray(slots, jnp.int32))
    timestep = environment.reset(as_seeds(jax.random.key_data(environment_keys)).tolist())
    yield slots, timestep

    @jax.jit
    def begin() -> AgentState:
        numbers = jnp.arange(environment.num_envs, dtype=jnp.int32)
        return agent.initial_state(slot_keys(seed, Stream.EVALUATION_AGENT, numbers), numbers)

    @jax.jit
    def act(params: Any, state: AgentState, timestep: TimeStep, arrived: Array) -> tuple[Array, AgentState]:
        timestep = stand_in(timestep, usable(timestep, jnp), jnp)
        action, _, acted = agent.act(params, state, timestep, Mode.EVALUATE)

        def keep(new: Array, old: Array) -> Array:
            return jnp.where(arrived.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        return action, jax.tree.map(keep, acted, state)

    state = begin()
    while True:
        arrived = np.zeros(environment.num_envs, bool)
        arrived[slots] = True
        actions, state = act(params, state, timestep, arrived)
        environment.send(np.asarray(actions)[slots])
        slots, news = environment.recv()
        if len(slots) == environment.num_envs:
            order = np.argsort(slots)
            timestep = jax.tree.map(lambda new: new[order], news)  # noqa: B023
        else:
            timestep = jax.tree.map(lambda old, new: _with_rows(old, slots, new), timestep, news)  # noqa: B023
        yield slots, news


def play_episodes(
    agent: Agent,
    environment: HostEnvironment,
    params: ActingParams,
    *,
    per_slot: int,
    seed: int,
    max_length: int,
) -> tuple[list[list[float]], list[list[int]]]:
    """Returns and lengths of every slot's first `per_slot` episodes; tells stderr now and then how far it is.

    Raises:
      UserError: an episode goes on for more than `max_length` steps.
    """
    num_envs = environment.num_envs
    returns: list[list[float]] = [[] for _ in range(num_envs)]
    lengths: list[list[int]] = [[] for _ in range(num_envs)]
    total, length = np.zeros(num_envs), np.zeros(num_envs, np.int64)
    shown_at = time.monotonic()
    for slots, timestep in play(agent, environment, params, seed):
        first = timestep.step_type == StepType.FIRST
        total[slots] = np.where(first, 0, total[slots] + timestep.reward)
        length[slots] = np.where(first, 0, length[slots] + 1)
        if length.max() > max_length:
            raise UserError(
                "evaluate",
                expected=f"episodes of at most {max_length:,} steps",
                found="one that goes on",
                remedy="give the environment a time limit",
            )
        for slot in slots[timestep.step_type == StepType.LAST]:
            if len(returns[slot]) < per_slot:
                returns[slot].append(float(total[slot]))
                lengths[slot].append(int(length[slot]))
        if min(map(len, returns)) == per_slot:
            break
        if time.monotonic() - shown_at >= _PROGRESS_EVERY_S:
            shown_at = time.monotonic()
            ended = [value for slot in returns for value in slot]
            mean = f", return {np.mean(ended):.2f} so far" if ended else ""
            print(f"{len(ended)} of {per_slot * num_envs} episodes{mean}", file=sys.stderr, flush=True)
    return returns, lengths


def _with_rows(old: np.ndarray, rows: np.ndarray, new: np.ndarray) -> np.ndarray:
    """A copy: JAX may still read what it was given."""
    copy = np.array(old)
    copy[rows] = new
    return copy
