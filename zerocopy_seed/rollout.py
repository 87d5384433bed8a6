"""An agent and environments stepping together: pure, for training, evaluation and benchmarks alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_envs.types import EnvState, TimeStep
from zerocopy_seed.types import ActingParams, AgentState, Array, Mode, Trajectory


class ActorState(NamedTuple):
    """What is carried from one unroll to the next, one row per slot.

    Attributes:
      agent: AgentState [B].
      env_state: the vectorised environment's.
      timestep: TimeStep [B], the one to act upon next.
    """

    agent: AgentState
    env_state: EnvState
    timestep: TimeStep


def unroll(
    act: Callable[..., tuple[Array, Any, AgentState]],
    step: Callable[[EnvState, Array], tuple[EnvState, TimeStep]],
    params: ActingParams,
    state: ActorState,
    slots: Array,
    *,
    length: int,
    mode: Mode,
) -> tuple[ActorState, Trajectory]:
    """`length` steps of every slot.

    Args:
      act: `Agent.act`.
      step: (env_state, actions [B]) -> env_state, TimeStep [B]; resets by itself after a LAST.
      params: what acting reads.
      state: where the previous unroll ended.
      slots: [B] int32.
      length: T.
      mode: which policy acts.

    Returns:
      The next ActorState and a Trajectory [T, B].
    """

    def one_step(state: ActorState, _):
        action, actor_output, agent_state = act(params, state.agent, state.timestep, mode)
        env_state, timestep = step(state.env_state, action)
        return ActorState(agent_state, env_state, timestep), (state.timestep, action, actor_output)

    end, (timesteps, actions, actor_outputs) = lax.scan(one_step, state, None, length=length)
    timesteps = jax.tree.map(lambda rows, last: jnp.concatenate([rows, last[None]]), timesteps, end.timestep)
    trajectory = Trajectory(
        timestep=timesteps,
        action=actions,
        actor_output=actor_outputs,
        recurrent=state.agent.recurrent,
        slot=slots,
        continues=jnp.ones_like(slots, bool),
    )
    return end, trajectory
