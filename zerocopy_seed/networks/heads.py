"""What turns features into what an agent reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax

from zerocopy_seed.networks.types import NetworkOutput
from zerocopy_seed.ops.distributions import apply_action_mask

Initializer = nn.initializers.Initializer


def dense_init(init: Literal["orthogonal", "lecun"], scale: float) -> Initializer:
    """Initial weights of a layer; only orthogonal ones are scaled."""
    return nn.initializers.orthogonal(scale) if init == "orthogonal" else nn.initializers.lecun_normal()


class PolicyValueHeads(nn.Module):
    """Features [T, B, F], and the mask [T, B, P] of legal actions or None -> `NetworkOutput`.

    Attributes:
      num_policy_params: P, size of the policy's output.
      scaled_init: scale -> initial weights of a dense layer.
    """

    num_policy_params: int
    scaled_init: Callable[[float], Initializer]

    @nn.compact
    def __call__(self, features: jax.Array, mask: Any) -> NetworkOutput:
        policy = nn.Dense(self.num_policy_params, kernel_init=self.scaled_init(0.01), name="policy")(features)
        value = nn.Dense(1, kernel_init=self.scaled_init(1.0), name="value")(features)
        return NetworkOutput(policy if mask is None else apply_action_mask(policy, mask), value[..., 0])
