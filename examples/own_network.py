"""A network of your own: here one with a memory, a minimal GRU (Feng et al. 2024, arXiv:2410.01201).

zerocopy-seed train configs/vtrace_memory_chain.toml --network.name examples.own_network:MinGRU \\
    --run-dir runs/memory
zerocopy-seed evaluate runs/memory    # return 1; without a memory 0
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_envs import EnvironmentSpec
from zerocopy_seed.networks import NetworkInput, NetworkOutput


class MinGRU(nn.Module):
    """Dense layers, a memory, and a linear policy and value.

    Attributes:
      spec: the environment's; this network takes any one array.
      num_policy_params: P, how many numbers the policy wants.
      hidden_sizes: widths before the memory, as `--network.settings.hidden-sizes`.
      memory_size: width of the memory, M.
    """

    spec: EnvironmentSpec
    num_policy_params: int
    hidden_sizes: Sequence[int] = (64,)
    memory_size: int = 64

    @nn.compact
    def __call__(self, inputs: NetworkInput, core: jax.Array) -> tuple[NetworkOutput, jax.Array]:
        """T steps of B slots, 1 in acting; `core` [B, M] is the memory after the step before them."""
        x = inputs.observation.reshape(*inputs.first.shape, -1)  # [T, B, features]
        for size in self.hidden_sizes:
            x = nn.tanh(nn.Dense(size)(x))
        # Neither depends on the memory, so that both are one product for all steps: the scan only adds.
        update = nn.sigmoid(nn.Dense(self.memory_size)(x))
        candidate = nn.tanh(nn.Dense(self.memory_size)(x))

        def remember(memory, row):
            update, candidate, first = row
            memory = jnp.where(first[:, None], 0.0, memory)  # an episode begins: nobody else resets it
            memory = (1 - update) * memory + update * candidate
            return memory, memory

        core, memories = lax.scan(remember, core, (update, candidate, inputs.first))
        x = jnp.concatenate([x, memories], -1)
        return NetworkOutput(nn.Dense(self.num_policy_params)(x), nn.Dense(1)(x)[..., 0]), core

    def initial_core(self, batch_size: int) -> jax.Array:
        """The memory before anything happened, [B, M]; () in a network without one."""
        return jnp.zeros((batch_size, self.memory_size))
