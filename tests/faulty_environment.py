"""An environment whose numbers are not always numbers, and what tests of such ask."""

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.types import ArraySpec, DiscreteAction, EnvironmentSpec, StepType, TimeStep

SOUND, NAN_OBSERVATION, INFINITE_REWARD, NAN_AT_THE_END, HUGE = range(5)


class Faulty:
    """Observes (steps since the reset, what is wrong with the episode, something); episodes last 5 steps."""

    spec = EnvironmentSpec(
        {"seen": ArraySpec((2,), jnp.float32), "other": ArraySpec((1,), jnp.float16)}, DiscreteAction(2), 5
    )

    def reset(self, key):
        kind = jax.random.randint(key, (), 0, 5, jnp.int32)
        return (jnp.int32(0), kind), self._timestep(jnp.int32(0), kind)

    def step(self, state, action):
        age, kind = state[0] + 1, state[1]
        return (age, kind), self._timestep(age, kind)

    def _timestep(self, age, kind):
        first, last = age == 0, age == 5
        # As of a simulator that has gone wrong: from then on, and that for ever.
        is_nan = ((kind == NAN_OBSERVATION) & (age >= 2)) | ((kind == NAN_AT_THE_END) & last)
        other = jnp.where(is_nan, jnp.nan, 1.0).astype(jnp.float16)[None]
        shown = jnp.where((kind == HUGE) & (age == 3), -2e19, kind.astype(jnp.float32))
        reward = jnp.where((kind == INFINITE_REWARD) & (age == 1), jnp.inf, jnp.where(first, 0.0, 1.0))
        return TimeStep(
            jnp.where(first, StepType.FIRST, jnp.where(last, StepType.LAST, StepType.MID)).astype(jnp.int8),
            reward.astype(jnp.float32),
            jnp.where(last, 0.0, 1.0).astype(jnp.float32),
            {"seen": jnp.stack([age.astype(jnp.float32), shown]), "other": other},
        )


FAULT_AT = {NAN_OBSERVATION: 2, INFINITE_REWARD: 1, NAN_AT_THE_END: 5, HUGE: 3}
"""Age at which an episode goes wrong."""


def require_finite(tree):
    for path, leaf in jax.tree.leaves_with_path(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert np.isfinite(np.asarray(leaf, np.float32)).all(), jax.tree_util.keystr(path)


def joined(timesteps):
    """Unrolls in turn as one: each begins with the row that the one before it ends with."""
    first, *others = timesteps
    return jax.tree.map(lambda x, *more: np.concatenate([x, *(y[1:] for y in more)]), first, *others)
