"""An agent whose every output says whose it is and how far it has come; cheap to compile."""

import jax.numpy as jnp

from zerocopy_envs.types import ArraySpec, DiscreteAction, EnvironmentSpec, StepType
from zerocopy_seed.types import ActingParams, Agent, AgentState, Exploration, RecurrentState

SPEC = EnvironmentSpec(ArraySpec((2,), jnp.int32), DiscreteAction(1000))


def make_counting_agent(*, stores: bool = False) -> Agent:
    """Acts with the number of steps since FIRST plus the parameter; its core is that number."""

    def initial_state(keys, slots):
        zeros = jnp.zeros(slots.shape, jnp.int32)
        return AgentState(RecurrentState(zeros, (), zeros), Exploration(keys, slots))

    def act(params, state, timestep, mode):
        count = jnp.where(timestep.step_type == StepType.FIRST, 0, state.recurrent.core) + 1
        action = count + params.network
        recurrent = state.recurrent._replace(core=count, last_action=action)
        return action, {"slot": state.exploration.epsilon}, state._replace(recurrent=recurrent)

    def no_learning(*_):
        raise NotImplementedError

    return Agent(
        init=no_learning,
        acting=no_learning,
        initial_state=initial_state,
        act=act,
        learn=no_learning,
        store=(lambda state, trajectory: state) if stores else None,
    )


PARAMS = ActingParams(jnp.int32(100))
