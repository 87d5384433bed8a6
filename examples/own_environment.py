"""An environment of your own: here a maze without walls, whose exit is somewhere else in every episode.

python examples/own_environment.py                    # checks it
zerocopy-seed train configs/vtrace_catch.toml --env.name examples.own_environment:FindExit --run-dir runs/exit
zerocopy-seed evaluate runs/exit --video exit.gif
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs import ArraySpec, DiscreteAction, EnvironmentSpec, StepType, TimeStep
from zerocopy_envs.testing import check_environment

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class State(NamedTuple):
    """All of an episode: `walker` and `exit` are int32 [2], row and column; `age` int32, steps so far."""

    walker: jax.Array
    exit: jax.Array
    age: jax.Array


class FindExit:
    """Walk up, down, left or right to the exit: 1 for reaching it, -0.01 for every step on the way.

    One episode of one environment; the library runs many of them and resets each. Settings are arguments:
    `--env.settings '{size = 7}'`.
    """

    def __init__(self, size: int = 5, max_steps: int = 20):
        self.size, self.max_steps = size, max_steps
        # Channels of a picture: the walker, the exit. `evaluate --video` draws it without more ado.
        observation = ArraySpec((size, size, 2), np.float32, 0.0, 1.0)
        self.spec = EnvironmentSpec(observation, DiscreteAction(len(MOVES)), max_steps)

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """A new episode; chance comes from the key alone."""
        walker, exit = jax.random.randint(key, (2, 2), 0, self.size, jnp.int32)
        state = State(walker, exit, jnp.int32(0))
        return state, self._timestep(state, jnp.int8(StepType.FIRST), jnp.float32(0), jnp.float32(1))

    def step(self, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """One move. Reaching the exit terminates (discount 0); time running out does not (discount 1)."""
        walker = jnp.clip(state.walker + jnp.array(MOVES, jnp.int32)[action], 0, self.size - 1)
        state = State(walker, state.exit, state.age + 1)
        arrived = jnp.all(walker == state.exit)
        ended = arrived | (state.age >= self.max_steps)
        return state, self._timestep(
            state,
            jnp.where(ended, StepType.LAST, StepType.MID).astype(jnp.int8),
            jnp.where(arrived, jnp.float32(1), jnp.float32(-0.01)),
            jnp.where(arrived, jnp.float32(0), jnp.float32(1)),
        )

    def _timestep(self, state, step_type, reward, discount) -> TimeStep:
        layers = [jnp.outer(*jax.nn.one_hot(place, self.size)) for place in (state.walker, state.exit)]
        return TimeStep(step_type, reward, discount, jnp.stack(layers, -1))


if __name__ == "__main__":
    check_environment(FindExit())
    print("it keeps the contract")
