"""A trained policy for use outside training."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.trees import named_leaves
from zerocopy_envs.types import EnvironmentSpec, TimeStep
from zerocopy_envs.usable import stand_in, usable
from zerocopy_seed.keys import Stream, slot_keys
from zerocopy_seed.loops.run_checkpoint import restore_acting
from zerocopy_seed.types import AgentState, Array, Mode


@dataclasses.dataclass(frozen=True)
class Policy:
    """The evaluation policy of a checkpoint.

    Attributes:
      spec: of the environment it was trained on.
      initial_state: number of slots B (and a seed) -> AgentState [B].
      step: TimeStep [B] and AgentState [B] -> actions [B], AgentState. FIRST resets a slot's memory. Raises
        UserError if a field does not fit the spec.
    """

    spec: EnvironmentSpec
    initial_state: Callable[..., AgentState]
    step: Callable[[TimeStep, AgentState], tuple[Array, AgentState]]


def load_policy(run_dir: str | pathlib.Path, *, step: int | None = None) -> Policy:
    """The policy in a run directory's checkpoint.

    Args:
      run_dir: what `zerocopy-seed train` wrote.
      step: which checkpoint; None takes the newest intact one.

    Raises:
      UserError: no such run or checkpoint.
    """
    agent, environment, _, params = restore_acting(run_dir, step)

    def initial_state(num_slots: int, seed: int = 0) -> AgentState:
        slots = jnp.arange(num_slots, dtype=jnp.int32)
        return agent.initial_state(slot_keys(seed, Stream.EVALUATION_AGENT, slots), slots)

    @jax.jit
    def act(params: Any, timestep: TimeStep, state: AgentState) -> tuple[Array, AgentState]:
        timestep = stand_in(timestep, usable(timestep, jnp), jnp)  # NaN would stay in the core
        action, _, state = agent.act(params, state, timestep, Mode.EVALUATE)
        return action, state

    def policy_step(timestep: TimeStep, state: AgentState) -> tuple[Array, AgentState]:
        _check_timestep(environment.spec, timestep, state.recurrent.last_action.shape[0])
        return act(params, timestep, state)

    return Policy(environment.spec, initial_state, policy_step)


def _check_timestep(spec: EnvironmentSpec, timestep: TimeStep, num_slots: int) -> None:
    """Refuses a timestep whose fields do not fit the spec; 64 bits pass for 32, as JAX takes them.

    Raises:
      UserError: naming the field.
    """
    for name in ("step_type", "reward", "discount"):
        found = np.shape(getattr(timestep, name))
        if found != (num_slots,):
            raise UserError(
                f"timestep.{name}",
                expected=f"shape {[num_slots]}, one for each slot of the state",
                found=f"shape {list(found)}",
            )
    wanted = dict(named_leaves(spec.observation, "timestep.observation"))
    given = dict(named_leaves(timestep.observation, "timestep.observation"))
    if wanted.keys() != given.keys():
        raise UserError(
            "timestep.observation",
            expected=", ".join(wanted),
            found=", ".join(given) or "nothing",
            remedy="give it the form of policy.spec.observation",
        )
    for path, leaf in wanted.items():
        dtype, shape = jnp.result_type(given[path]), np.shape(given[path])
        if (dtype, shape) != (leaf.dtype, (num_slots, *leaf.shape)):
            raise UserError(
                path,
                expected=f"{leaf.dtype}{[num_slots, *leaf.shape]}, of policy.spec and the state's slots",
                found=f"{dtype}{list(shape)}",
            )
