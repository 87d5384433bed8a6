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
Natural = Annotated[int, Range(0, 2**31 - 1)]
Port = Annotated[int, Range(0, 2**16 - 1)]
Steps = Annotated[int, Range(1, 2**63 - 1)]
Seed = Annotated[int, Range(0, 2**32 - 1)]  # JAX drops the bits above 32
Fraction = Annotated[float, Range(0.0, 1.0)]
Decay = Annotated[float, Range(0.0, 1.0, open_end=True)]
Weight = Annotated[float, Range(0.0, _LARGEST_FLOAT32)]
Finite = Annotated[float, Range(-_LARGEST_FLOAT32, _LARGEST_FLOAT32)]
Positive = Annotated[float, Range(0.0, _LARGEST_FLOAT32, open=True)]
Limit = Annotated[float, Range(0.0, math.inf)]
ActionStd = Annotated[float, Range(0.01, 10.0)]
Horizon = Annotated[float, Range(0.0, math.inf, open=True)]


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Which environment, how many of it."""

    name: str
    """`suite:name` (see `zerocopy-seed envs`) or `package.module:factory`."""
    num_envs: Count = 64
    """Environments stepped at once; V-trace's batch size, in unrolls."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Passed to the environment."""
    place: Literal["auto", "actors"] = "auto"
    """Where it steps: JAX environments on the device and others in actors, or all in actors."""


@dataclasses.dataclass(frozen=True)
class LearningConfig:
    """What every agent has: its unrolls, its optimiser, and how it takes rewards."""

    unroll_length: Count = 32
    """Steps per unroll, T."""
    num_shards: Count = 1
    """Blocks of slots drawn from apart; a multiple of the devices. Results depend on it alone."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimiser."""
    learning_rate: Weight = 1e-3
    """Step size at the start."""
    learning_rate_decay_env_steps: Horizon = math.inf
    """Step size falls linearly to 0 over this many env_steps; inf keeps it."""
    adam_b1: Decay = 0.9
    """Adam's first moment decay (SEED's V-trace: 0)."""
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
    reward_clip: Limit = math.inf
    """Rewards are clipped to +-this for learning; logged returns are not."""


@dataclasses.dataclass(frozen=True)
class VTraceConfig(LearningConfig):
    """V-trace actor-critic (IMPALA, arXiv:1802.01561)."""

    name: Literal["vtrace"] = "vtrace"
    """The agent's name."""
    num_passes: Count = 1
    """Passes over each batch; V-trace corrects the reuse."""
    num_minibatches: Count = 1
    """Minibatches per pass, split over unrolls."""
    vtrace_lambda: Fraction = 1.0
    """Trace decay, lambda."""
    clip_rho: Limit = 1.0
    """Bound of the importance ratio in the value targets."""
    clip_c: Limit = 1.0
    """Bound of the importance ratio in the traces."""
    clip_pg_rho: Limit = 1.0
    """Bound of the importance ratio in the policy gradient."""
    policy_clip: Limit = math.inf
    """An action whose ratio is further from 1, the way its advantage leads, has no gradient (PPO)."""
    entropy_cost: Weight = 0.01
    """Weight of the entropy bonus; its first value when adaptive."""
    adaptive_entropy: bool = False
    """Adjust the entropy cost to keep the policy at target_entropy."""
    target_entropy: Finite = 0.0
    """Mean policy entropy to keep, in nats (adaptive_entropy only); of bounded actions often negative."""
    entropy_adjustment_speed: Positive = 10.0
    """How fast the adaptive cost moves (adaptive_entropy only)."""
    baseline_cost: Weight = 0.5
    """Weight of half the squared value error."""
    normalize_advantages: bool = False
    """Scale the advantages of each minibatch to mean 0 and standard deviation 1."""
    normalize_observations: bool = False
    """Give float observations mean 0 and deviation 1, by statistics of all before, and clip them to +-10."""
    normalize_rewards: bool = False
    """Divide rewards by the deviation of their discounted sums, for learning; logged returns are not."""
    eval_greedy: bool = True
    """Evaluate at the policy's mode; false samples."""


@dataclasses.dataclass(frozen=True)
class R2D2Config(LearningConfig):
    """Recurrent replayed Q-learning (R2D2, Kapturowski et al. 2019); DQN and Ape-X are settings of it."""

    name: Literal["r2d2"] = "r2d2"
    """The agent's name."""
    burn_in: Natural = 0
    """Rows of a sequence that only warm the core up, from its stored state."""
    sequence_length: Count = 32
    """Rows of a sequence that are trained on; 1 for DQN."""
    look_ahead: Natural = 0
    """Rows after those, so that the last trained ones have whole n-step returns; n_step - 1 for DQN."""
    period: Count = 32
    """Steps between the starts of sequences; with a core a multiple of unroll_length, else also a divisor."""
    start_state: Literal["stored", "zero"] = "stored"
    """The core's state at a sequence's start: what it was when acting, or zeros."""
    replay_capacity: Count = 10_000
    """Sequences kept, of all slots together."""
    min_replay: Count = 500
    """Sequences stored before learning starts."""
    batch_size: Count = 64
    """Sequences per update."""
    updates_per_insert: Count = 1
    """Updates for every unroll of all slots; with period and batch_size it makes the replay ratio."""
    sampling: Literal["prioritized", "uniform"] = "prioritized"
    """How sequences are drawn."""
    priority_exponent: Fraction = 0.9
    """Probability of a sequence: its priority to this power."""
    importance_exponent: Fraction = 0.6
    """Importance weight: inverse probability to this power, over the batch's largest (prioritized only)."""
    priority_eta: Fraction = 0.9
    """Priority: eta times the largest absolute error of a sequence plus 1 - eta times the mean."""
    n_step: Count = 5
    """Rewards in a target before it bootstraps."""
    double_q: bool = True
    """Bootstrap from the action that the online network prefers (double Q-learning)."""
    dueling: bool = True
    """Q = V + A - mean A from both heads of the network; false takes the policy head's output as Q."""
    rescale_values: bool = True
    """Learn Q through h(x) = sign(x)(sqrt(|x| + 1) - 1) + x / 1000."""
    target_update_period: Count = 2500
    """Gradient updates between copies of the online network to the target network."""
    epsilon_base: Fraction = 0.4
    """Rung i of N, one a slot, explores with probability epsilon_base^(1 + epsilon_alpha i / (N - 1))."""
    epsilon_alpha: Weight = 7.0
    """How far that ladder reaches; 0 gives all slots epsilon_base."""
    eval_epsilon: Fraction = 1e-3
    """Probability of a random action in evaluation; 0 is greedy."""


AgentConfig = VTraceConfig | R2D2Config
"""A union of every agent's dataclass; `agent.name` chooses."""


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Torso, core and what they are fed."""

    name: str = "default"
    """`default`, or `package.module:Class` of your own (then only `settings` and `frame_stack` apply)."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of your own class."""
    torso: Literal["mlp", "minatar_conv", "nature_conv", "halving_conv", "impala_resnet"] = "mlp"
    """What turns an observation into features."""
    torso_channels: tuple[Count, ...] = ()
    """Channels of its convolutions or residual sections, fewer to leave out the last; none: the paper's."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """What the torso multiplies in; parameters, core, heads and losses are float32 either way."""
    rematerialize: bool = False
    """Compute the torso's layers again on the way back instead of keeping them: less memory, more time."""
    standardize_pictures: bool = False
    """Give every picture mean 0 and deviation 1 before the convolutions: small things are learned sooner."""
    hidden_sizes: tuple[Count, ...] = (64, 64)
    """Dense layers of the torso (after the convolutions, where there are some)."""
    head_hidden_sizes: tuple[Count, ...] = ()
    """Dense layers of each head's own, before its output."""
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
    action_scale: Literal["independent", "state"] = "independent"
    """Deviation of bounded actions: numbers learned for all observations, or outputs of the network."""
    init_action_std: ActionStd = 0.5
    """What it is at first, before actions are squashed by tanh."""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When to save, how much to keep."""

    every_s: Limit = 300.0
    """Seconds between checkpoints; one is always saved at the end."""
    max_to_keep: Count = 3
    """Newest checkpoints kept."""
    replay: Literal["auto", True, False] = "auto"
    """Save the replay with them; auto does so below 2 GB. A run resumed without it refills it first."""


@dataclasses.dataclass(frozen=True)
class MetricsConfig:
    """What is logged, how often."""

    every_env_steps: Steps = 20_000
    """env_steps between lines of metrics.jsonl."""
    tensorboard: bool = True
    """Write TensorBoard events too."""
    port: Port = 0
    """Port of a page for Prometheus (`/metrics`); 0 serves none."""
    host: str = "127.0.0.1"
    """Address that the page is served at; it is neither encrypted nor secret to whoever reaches it."""


@dataclasses.dataclass(frozen=True)
class DevicesConfig:
    """Which devices learn, and which act for actors."""

    learner: Count = 1
    """Devices that learn together and share the slots; must divide agent.num_shards and env.num_envs, or
    the runs at once."""
    model: Count = 1
    """Devices over which every large layer is split: each of devices.learner is so many."""
    inference: Annotated[int, Range(0, 1)] = 0
    """1: one more device acts for actors and does not learn; 0: the learner's first acts too."""

    @property
    def num_learning(self) -> int:
        """All that learn."""
        return self.learner * self.model


@dataclasses.dataclass(frozen=True)
class BridgeConfig:
    """Actors: where they join, how many are started here, and how far behind their policy may be."""

    address: str = "127.0.0.1:0"
    """host:port or unix:/path where actors join; port 0 takes a free one, which a resumed run takes again."""
    local_actors: Natural = 1
    """Actor processes started with the learner and stopped with it, over a Unix socket."""
    envs_per_actor: Natural = 0
    """Environments of each local actor; 0 deals all of env.num_envs among them: nobody else can join."""
    max_policy_lag: Limit = math.inf
    """Most updates between an unroll's first action and its use; 0 is lock step, inf sets no bound."""
    max_inference_batch: Count = 256
    """Environments acted for in one call; what waits beyond that is next."""
    inference: Literal["auto", "loop", "thread"] = "auto"
    """Where acting runs: in the server's event loop (cheap policies) or a thread beside it; auto measures."""
    cert: str = ""
    """File of the certificate (PEM) that actors see; `zerocopy-seed certs` makes one. Empty: no TLS."""
    key: str = ""
    """File of the certificate's key."""
    ca: str = ""
    """File of the CA whose certificate every actor must show; empty: none is asked for."""
    token_file: str = ""
    """File of the token that every actor must send; needed, as TLS is, where other machines can join."""
    insecure: bool = False
    """Do without TLS and token although other machines can join: whoever reaches the address."""
    max_streams: Count = 1024
    """Calls of actors that join at `address` at once, each one's stream is one; more are told to wait."""
    max_envs_per_actor: Count = 1024
    """Most environments of an actor that joins at `address`, which bounds its messages too."""


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation while training; the checkpoint that did best is kept in `best`."""

    every_env_steps: Horizon = math.inf
    """Whole episodes at the evaluation policy are played this often; inf never does."""
    episodes: Count = 32
    """How many."""
    slots: Count = 8
    """Environments that evaluate at once where they step on the host, in an actor of their own."""


@dataclasses.dataclass(frozen=True)
class SourcesConfig:
    """Where the unrolls of a batch come from, if from the device and from actors at once."""

    device: Fraction = 1.0
    """Share of `env.num_envs` that is on the device; only of environments written in JAX."""
    actors: Fraction = 0.0
    """Share that is in actors; the two add up to 1. To have all in actors, set `env.place` instead."""
    actors_env: str = ""
    """What actors run, with the same spec; "" is `env.name`."""
    actors_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of that environment."""
    wait: bool = True
    """Wait for the actors' share of every batch; false takes what they have finished, be it nothing."""


@dataclasses.dataclass(frozen=True)
class RecordConfig:
    """Whether trajectories are kept on disk, for other runs to learn from (`source`)."""

    dir: str = ""
    """Directory that they are appended to; empty: nothing is recorded."""
    max_gb: Horizon = 10.0
    """GB after which recording ends (training goes on)."""
    shard_mb: Positive = 64.0
    """MB of each file, about."""


@dataclasses.dataclass(frozen=True)
class Config:
    """One experiment, whole."""

    env: EnvConfig
    total_env_steps: Steps
    """Training stops at the first update at or past this many transitions."""
    seed: Seed = 0
    """Everything random follows from it."""
    source: str = ""
    """Where unrolls come from: empty: environments; `recorded:DIR`: what runs wrote to their `record.dir`."""
    num_seeds: Count = 1
    """Seeds trained at once, from `seed` on; each is a run of its own (with `sweep`, for each setting)."""
    sweep: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Float settings of the agent, trained at once: `agent.discount = [0.9, 0.99]`, or log uniform draws,
    `agent.learning_rate = { low = 0.0001, high = 0.01, num = 8 }`."""
    agent: AgentConfig = dataclasses.field(default_factory=VTraceConfig)
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = dataclasses.field(default_factory=MetricsConfig)
    devices: DevicesConfig = dataclasses.field(default_factory=DevicesConfig)
    bridge: BridgeConfig = dataclasses.field(default_factory=BridgeConfig)
    sources: SourcesConfig = dataclasses.field(default_factory=SourcesConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    record: RecordConfig = dataclasses.field(default_factory=RecordConfig)
