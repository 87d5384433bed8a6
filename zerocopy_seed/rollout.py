"""An agent and environments stepping together: pure, for training, evaluation and benchmarks alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_envs.types import EnvState, TimeStep
from zerocopy_envs.usable import stand_in, usable
from zerocopy_seed.types import ActingParams, AgentState, Array, Key, Mode, Trajectory


class ActorState(NamedTuple):
    """What is carried from one unroll to the next, one row per slot.

    Attributes:
      agent: AgentState [B].
      env_state: the vectorised environment's.
      timestep: TimeStep [B], the one to act upon next.
      continues: [B] bool, an unroll of this slot came before.
    """

    agent: AgentState
    env_state: EnvState
    timestep: TimeStep
    continues: Array


def begin(
    initial_state: Callable[[Key, Array], AgentState],
    reset: Callable[[Key], tuple[EnvState, TimeStep]],
    agent_keys: Key,
    environment_keys: Key,
    slots: Array,
) -> ActorState:
    """Slots [B] int32 before their first step.

    Args:
      initial_state: `Agent.initial_state`.
      reset: keys [B] -> env_state, TimeStep [B].
      agent_keys: [B] typed keys.
      environment_keys: [B] typed keys.
      slots: [B] int32.
    """
    env_state, timestep = reset(environment_keys)
    return ActorState(
        initial_state(agent_keys, slots), env_state, _stand_in(timestep), jnp.zeros(slots.shape, bool)
    )


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
      step: (env_state, actions [B]) -> env_state, TimeStep [B]; resets by itself after a LAST, and after a
        timestep that cannot be used, whose stand-in is in the trajectory.
      params: what acting reads.
      state: where the previous unroll ended.
      slots: [B] int32.
      length: T.
      mode: which policy acts.

    Returns:
      The next ActorState and a Trajectory [T, B].
    """

    def one_step(carry: tuple[AgentState, EnvState, TimeStep], _):
        agent_state, env_state, timestep = carry
        action, actor_output, agent_state = act(params, agent_state, timestep, mode)
        env_state, next_timestep = step(env_state, action)
        return (agent_state, env_state, _stand_in(next_timestep)), (timestep, action, actor_output)

    carry = (state.agent, state.env_state, state.timestep)
    carry, (timesteps, actions, actor_outputs) = lax.scan(one_step, carry, None, length=length)
    end = ActorState(*carry, continues=jnp.ones_like(state.continues))
    timesteps = jax.tree.map(lambda rows, last: jnp.concatenate([rows, last[None]]), timesteps, end.timestep)
    trajectory = Trajectory(
        timestep=timesteps,
        action=actions,
        actor_output=actor_outputs,
        recurrent=state.agent.recurrent,
        slot=slots,
        continues=state.continues,
    )
    return end, trajectory


def _stand_in(timestep: TimeStep) -> TimeStep:
    return stand_in(timestep, usable(timestep, jnp), jnp)
