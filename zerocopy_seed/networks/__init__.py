"""Networks: one linen module for acting and learning, time-major.

A network maps observations, and what else an agent knows, to the parameters of a policy and a value:

    module.init(key, inputs, core) -> variables
    module.apply(variables, inputs: NetworkInput, core) -> NetworkOutput, core
    module.initial_core(batch_size) -> core        a pytree [B, ...] of zeros, or (); needs no parameters

Acting is a call with T = 1. The network itself replaces the rows of `core` by the initial ones where
`inputs.first` is True, before it consumes that step: nobody else does.

Your own network is a class named in the configuration, `network.name = "package.module:Class"`. It is
constructed as `Class(spec=spec, num_policy_params=P, **network.settings)` and keeps the same contract:

    class Mine(nn.Module):
        spec: EnvironmentSpec
        num_policy_params: int
        width: int = 64

        @nn.compact
        def __call__(self, inputs, core):
            x = nn.relu(nn.Dense(self.width)(inputs.observation))  # [T, B, width]
            return NetworkOutput(nn.Dense(self.num_policy_params)(x), nn.Dense(1)(x)[..., 0]), core

        def initial_core(self, batch_size):
            return ()

`num_policy_params` is the `num_params` of `zerocopy_seed.ops.distributions.make_distribution(spec.action)`.
Where actions can be illegal, put the logits through `apply_action_mask` of the same module. Where they are
bounded, P = 2 A: A means, and A numbers x that make deviations of 0.001 + softplus(x), before the squashing.
"""

from zerocopy_seed.networks.factory import make_network
from zerocopy_seed.networks.heads import PolicyValueHeads
from zerocopy_seed.networks.types import NetworkInput, NetworkOutput

__all__ = ["NetworkInput", "NetworkOutput", "PolicyValueHeads", "make_network"]
