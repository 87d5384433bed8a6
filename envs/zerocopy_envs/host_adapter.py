"""A JAX environment as a host environment, for processes that feed a learner over the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.host_steps import check_actions, check_num_envs, check_seeds
from zerocopy_envs.types import EnvironmentSpec, TimeStep
from zerocopy_envs.wrappers import Vectorized


class HostedEnvironment:
    """`num_envs` copies of a JAX environment behind the host contract.

    Args:
      environment: the copies; those of one `Vectorized` share their compiled steps.
      num_envs: how many.
    """

    def __init__(self, environment: Vectorized, num_envs: int):
        self._name = type(environment.environment).__name__
        check_num_envs(self._name, num_envs)
        self.num_envs = num_envs
        self._environment = environment
        # Bound methods of one object are equal, so jit finds the programs of another instance.
        self._reset, self._step = jax.jit(environment.reset), jax.jit(environment.step)
        self._state: Any = None
        draw = getattr(environment.environment, "render", None)
        self.render = None if draw is None else lambda: self._draw(draw)
        self._timestep: TimeStep | None = None

    @property
    def spec(self) -> EnvironmentSpec:
        """The environment's own."""
        return self._environment.spec

    def reset(self, seeds: Sequence[int]) -> TimeStep:
        """FIRST timesteps [N]; a seed of 64 bits is the slot's threefry key, its upper word and its lower."""
        words = np.array(check_seeds(self._name, seeds, self.num_envs), np.uint64)
        words = np.stack([words >> np.uint64(32), words & np.uint64(2**32 - 1)], axis=1).astype(np.uint32)
        self._state, timestep = self._reset(jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32"))
        self._timestep = None
        return jax.device_get(timestep)

    def send(self, actions: np.ndarray) -> None:
        """Starts a step of every slot."""
        if self._state is None or self._timestep is not None:
            raise UserError(f"{self._name}: send", expected="a reset or recv before it")
        actions = check_actions(self._name, self.spec.action, actions, self.num_envs)
        self._state, self._timestep = self._step(self._state, np.array(actions))

    def recv(self) -> tuple[np.ndarray, TimeStep]:
        """All slots and their timesteps [N]."""
        timestep, self._timestep = self._timestep, None
        if timestep is None:
            raise UserError(f"{self._name}: recv", expected="a send before it")
        return np.arange(self.num_envs), jax.device_get(timestep)

    def _draw(self, draw: Callable[[Any], Any]) -> np.ndarray:
        """The environment's `render(state)` of every slot, uint8 [N, H, W, 3]."""
        return np.asarray(jax.vmap(draw)(self._state.environment))

    def close(self) -> None:
        """Forgets the state."""
        self._state = self._timestep = None
