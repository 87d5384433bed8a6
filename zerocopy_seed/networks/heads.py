"""What turns features into what an agent reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from zerocopy_seed.networks.dense import Dense
from zerocopy_seed.networks.types import NetworkOutput
from zerocopy_seed.ops.distributions import apply_action_mask
from zerocopy_seed.ops.distributions.squashed_gaussian import MIN_STD, inverse_softplus

Initializer = nn.initializers.Initializer


def dense_init(init: Literal["orthogonal", "lecun"], scale: float) -> Initializer:
    """Initial weights of a layer; only orthogonal ones are scaled."""
    return nn.initializers.orthogonal(scale) if init == "orthogonal" else nn.initializers.lecun_normal()


class PolicyValueHeads(nn.Module):
    """Features [T, B, F], and the mask [T, B, P] of legal actions or None -> `NetworkOutput`.

    Attributes:
      num_policy_params: P, size of the policy's output.
      scaled_init: scale -> initial weights of a dense layer.
      hidden_sizes: widths of dense layers of each head's own.
      activation: after each of those.
    """

    num_policy_params: int
    scaled_init: Callable[[float], Initializer]
    hidden_sizes: tuple[int, ...] = ()
    activation: Callable[[jax.Array], jax.Array] = nn.relu

    @nn.compact
    def __call__(self, features: jax.Array, mask: Any) -> NetworkOutput:
        policy = self.policy(features)
        value = self._head(features, "value", 1, 1.0)
        return NetworkOutput(policy if mask is None else apply_action_mask(policy, mask), value[..., 0])

    def policy(self, features: jax.Array) -> jax.Array:
        """[T, B, F] -> [T, B, P]."""
        return self._head(features, "policy", self.num_policy_params, 0.01)

    def _head(self, x: jax.Array, name: str, size: int, scale: float) -> jax.Array:
        for index, width in enumerate(self.hidden_sizes):
            hidden = Dense(width, kernel_init=self.scaled_init(2**0.5), name=f"{name}_dense_{index}")
            x = self.activation(hidden(x))
        return Dense(size, kernel_init=self.scaled_init(scale), name=name)(x)


class BoundedPolicyValueHeads(PolicyValueHeads):
    """Those of an agent with bounded actions: P / 2 means, and as many numbers that make the deviations.

    Attributes:
      scale: the deviations are numbers learned for all observations (`independent`), or outputs beside the
        means (`state`).
      init_std: at the beginning, before the squashing.
    """

    scale: Literal["independent", "state"] = "independent"
    init_std: float = 0.5

    def policy(self, features: jax.Array) -> jax.Array:
        size = self.num_policy_params // 2
        begin = inverse_softplus(self.init_std - MIN_STD)
        if self.scale == "state":
            x = self._head(features, "policy", 2 * size, 0.01)
            return jnp.concatenate([x[..., :size], x[..., size:] + begin], -1)
        means = self._head(features, "policy", size, 0.01)
        deviations = self.param("policy_scale", nn.initializers.constant(begin), (size,), jnp.float32)
        return jnp.concatenate([means, jnp.broadcast_to(deviations, means.shape)], -1)
