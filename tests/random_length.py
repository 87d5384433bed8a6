"""An environment whose episodes end at random, so that equal numbers of updates take unequal env_steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs import ArraySpec, DiscreteAction, EnvironmentSpec, StepType, TimeStep


class State(NamedTuple):
    key: jax.Array
    sign: jax.Array


class RandomLength:
    """Names a sign for 1 or -1 a step; each step is the last with probability 1/4."""

    spec = EnvironmentSpec(ArraySpec((1,), np.float32), DiscreteAction(2), max_episode_steps=None)

    def reset(self, key):
        return self._next(key, StepType.FIRST, 0.0, 1.0)

    def step(self, state, action):
        key, end_key = jax.random.split(state.key)
        ends = jax.random.bernoulli(end_key, 0.25)
        reward = jnp.where(action == state.sign, 1.0, -1.0)
        return self._next(
            key, jnp.where(ends, StepType.LAST, StepType.MID), reward, 1.0 - ends.astype(jnp.float32)
        )

    def _next(self, key, step_type, reward, discount):
        key, sign_key = jax.random.split(key)
        sign = jax.random.bernoulli(sign_key).astype(jnp.int32)
        observation = 2.0 * sign[None].astype(jnp.float32) - 1.0
        timestep = TimeStep(jnp.int8(step_type), jnp.float32(reward), jnp.float32(discount), observation)
        return State(key, sign), timestep
