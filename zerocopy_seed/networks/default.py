"""The network that a configuration describes: torso, optional core, heads."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from zerocopy_seed.networks.core import RecurrentCore
from zerocopy_seed.networks.types import NetworkInput
from zerocopy_seed.types import split_action_mask


class Network(nn.Module):
    """Torso over all steps at once, then the core along time, then heads; see the package for the contract.

    Attributes:
      torso: observation [N, ...] -> features [N, F].
      core: features [T, B, F] -> [T, B, size], or None.
      heads: features [T, B, F], mask [T, B, P] or None -> the network's output.
      action_sizes: numbers of values of the action's heads; of the one head of a discrete action; () if it is
        bounded.
      use_last_action: join the last action to the torso's features, one-hot or, if bounded, as it is.
      use_last_reward: join the last reward.
    """

    torso: nn.Module
    core: RecurrentCore | None
    heads: nn.Module
    action_sizes: tuple[int, ...]
    use_last_action: bool = False
    use_last_reward: bool = False

    def __call__(self, inputs: NetworkInput, core: Any) -> tuple[Any, Any]:
        observation, mask = split_action_mask(inputs.observation)
        steps = inputs.first.shape
        # Time joins the batch: a convolution's gradient inside a scan is slow on CPU.
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), observation)
        features = [self.torso(rows).reshape(*steps, -1)]
        if self.use_last_action:
            last = inputs.last_action.reshape(*steps, -1)
            one_hot = [jax.nn.one_hot(last[..., i], size) for i, size in enumerate(self.action_sizes)]
            features += one_hot or [last]
        if self.use_last_reward:
            features.append(inputs.reward[..., None].astype(jnp.float32))
        joined = jnp.concatenate(features, axis=-1)
        if self.core is not None:
            joined, core = self.core(joined, inputs.first, core)
        return self.heads(joined, mask), core

    def initial_core(self, batch_size: int) -> Any:
        return () if self.core is None else self.core.initial_carry(batch_size)
