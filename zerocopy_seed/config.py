"""The configuration: typed, frozen dataclasses and nothing else. Imports no JAX and nothing of this package.

A field's docstring is its `--help` text, its annotation its type and range; `config_file` reads and checks
them. `inf` switches a limit off; 0 is always a value.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, Literal


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a setting may be; NaN never is. An `open` end is not itself allowed."""

    minimum: float
    maximum: float
    open: bool = False
    open_end: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.minimum < value if self.open else self.minimum <= value
        return above and (value < self.maximum if self.open_end else value <= self.maximum)

    def __str__(self) -> str:
        lower = f"more than {self.minimum:g}" if self.open else f"at least {self.minimum:g}"
        if self.maximum == math.inf:
            return lower
        if self.maximum == _LARGEST_FLOAT32:
            return f"{lower} and finite in float32"
        return f"{lower} and {'less than' if self.open_end else 'at most'} {self.maximum:,}"


_LARGEST_FLOAT32 = 3.4028234e38  # settings become float32 arrays

Count = Annotated[int, Range(1, 2**31 - 1)]
Steps = Annotated[int, Range(1, 2**63 - 1)]
Seed = Annotated[int, Range(0, 2**32 - 1)]  # JAX drops the bits above 32
Fraction = Annotated[float, Range(0.0, 1.0)]
Decay = Annotated[float, Range(0.0, 1.0, open_end=True)]
Weight = Annotated[float, Range(0.0, _LARGEST_FLOAT32)]
Positive = Annotated[float, Range(0.0, _LARGEST_FLOAT32, open=True)]
Limit = Annotated[float, Range(0.0, math.inf)]
Horizon = Annotated[float, Range(0.0, math.inf, open=True)]


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Which environment, how many of it."""

    name: str
    """`suite:name` (see `zerocopy-seed envs`) or `package.module:factory`."""
    num_envs: Count = 64
    """Environments stepped at once; also the batch size, in unrolls."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Passed to the environment."""


@dataclasses.dataclass(frozen=True)
class VTraceConfig:
    """V-trace actor-critic (IMPALA, arXiv:1802.01561)."""

    name: Literal["vtrace"] = "vtrace"
    """The agent's name."""
    unroll_length: Count = 32
    """Steps per unroll, T."""
    num_passes: Count = 1
    """Passes over each batch; V-trace corrects the reuse."""
    num_minibatches: Count = 1
    """Minibatches per pass, split over unrolls."""
    num_shards: Count = 1
    """Blocks of slots shuffled apart; a multiple of the devices. Results depend on it, not on the devices."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimiser."""
    learning_rate: Weight = 1e-3
    """Step size at the start."""
    learning_rate_decay_env_steps: Horizon = math.inf
    """Step size falls linearly to 0 over this many env_steps; inf keeps it."""
    adam_b1: Decay = 0.9
    """Adam's first moment decay (SEED: 0)."""
    adam_b2: Decay = 0.999
    """Adam's second moment decay."""
    rmsprop_decay: Decay = 0.99
    """RMSProp's second moment decay."""
    optimizer_epsilon: Positive = 1e-5
    """Added to the root of the second moment."""
    max_grad_norm: Limit = math.inf
    """Gradients are scaled down to this global norm; inf leaves them."""
    discount: Fraction = 0.99
    """Gamma; multiplies the environment's own discount."""
    vtrace_lambda: Fraction = 1.0
    """Trace decay, lambda."""
    clip_rho: Limit = 1.0
    """Bound of the importance ratio in the value targets."""
    clip_c: Limit = 1.0
    """Bound of the importance ratio in the traces."""
    clip_pg_rho: Limit = 1.0
    """Bound of the importance ratio in the policy gradient."""
    entropy_cost: Weight = 0.01
    """Weight of the entropy bonus; its first value when adaptive."""
    adaptive_entropy: bool = False
    """Adjust the entropy cost to keep the policy at target_entropy."""
    target_entropy: Weight = 0.0
    """Mean policy entropy to keep, in nats (adaptive_entropy only)."""
    entropy_adjustment_speed: Positive = 10.0
    """How fast the adaptive cost moves (adaptive_entropy only)."""
    baseline_cost: Weight = 0.5
    """Weight of half the squared value error."""
    reward_clip: Limit = math.inf
    """Rewards are clipped to +-this for learning; logged returns are not."""
    normalize_advantages: bool = False
    """Scale the advantages of each minibatch to mean 0 and standard deviation 1."""
    eval_greedy: bool = True
    """Evaluate at the policy's mode; false samples."""


AgentConfig = VTraceConfig
"""A union of every agent's dataclass; `agent.name` chooses."""


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Torso, core and what they are fed."""

    name: str = "default"
    """`default`, or `package.module:Class` of your own (then only `settings` and `frame_stack` apply)."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of your own class."""
    torso: Literal["mlp", "minatar_conv"] = "mlp"
    """What turns an observation into features."""
    hidden_sizes: tuple[Count, ...] = (64, 64)
    """Dense layers of the torso (after the convolution, where there is one)."""
    activation: Literal["relu", "tanh", "silu"] = "tanh"
    """Between layers."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core between torso and heads."""
    core_size: Count = 128
    """Width of the core."""
    use_last_action: bool = False
    """Feed the last action beside the torso's features."""
    use_last_reward: bool = False
    """Feed the last reward beside the torso's features."""
    frame_stack: Count = 1
    """Observations seen at once, stacked along the last axis."""
    init: Literal["orthogonal", "lecun"] = "orthogonal"
    """Initial weights of the dense and convolution layers."""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When to save, how much to keep."""

    every_s: Limit = 300.0
    """Seconds between checkpoints; one is always saved at the end."""
    max_to_keep: Count = 3
    """Newest checkpoints kept."""


@dataclasses.dataclass(frozen=True)
class MetricsConfig:
    """What is logged, how often."""

    every_env_steps: Steps = 20_000
    """env_steps between lines of metrics.jsonl."""
    tensorboard: bool = True
    """Write TensorBoard events too."""


@dataclasses.dataclass(frozen=True)
class DevicesConfig:
    """Which devices train."""

    num_devices: Count = 1
    """Devices that share the slots; must divide agent.num_shards and env.num_envs."""


@dataclasses.dataclass(frozen=True)
class Config:
    """One experiment, whole."""

    env: EnvConfig
    total_env_steps: Steps
    """Training stops at the first update at or past this many transitions."""
    seed: Seed = 0
    """Everything random follows from it."""
    agent: AgentConfig = dataclasses.field(default_factory=VTraceConfig)
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = dataclasses.field(default_factory=MetricsConfig)
    devices: DevicesConfig = dataclasses.field(default_factory=DevicesConfig)
