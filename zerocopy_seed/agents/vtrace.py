"""V-trace actor-critic (IMPALA, arXiv:1802.01561) as pure functions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from zerocopy_envs.types import EnvironmentSpec, TimeStep
from zerocopy_seed.agents.minibatch import scan_minibatches, sum_gradients
from zerocopy_seed.agents.normalization import make_normalizer
from zerocopy_seed.agents.optimizer import (
    apply_gradients,
    decayed_learning_rate,
    float_settings,
    make_optimizer,
)
from zerocopy_seed.agents.stand_ins import count_stand_ins
from zerocopy_seed.config import VTraceConfig
from zerocopy_seed.ops import counters
from zerocopy_seed.ops.collectives import local_copy, sum_over_devices
from zerocopy_seed.ops.distributions import make_distribution
from zerocopy_seed.ops.random import next_uniforms
from zerocopy_seed.ops.vtrace import clipped_ratio, vtrace
from zerocopy_seed.recurrent import init_network, initial_recurrent, network_input_step, network_input_unroll
from zerocopy_seed.types import (
    ActingParams,
    Agent,
    AgentState,
    Array,
    Exploration,
    Key,
    LearnerState,
    Mode,
    Trajectory,
    valid_transitions,
)

# On the CPU a larger piece's activations leave the cache: 4096 environments learned at half the speed of 64,
# and 640 rows of Atari's pictures at half the speed of 20.
_CPU_MAX_ROWS = 4096
_CPU_MAX_BYTES = 2**22

# Names of sources in metrics.
DEVICE, ACTORS = "device", "actors"


class VTraceOutput(NamedTuple):
    """What the behaviour policy said.

    Attributes:
      log_prob: [B] float32, of the action taken.
      raw_action: [B, A] float32, what a bounded action was squashed from; () for others.
    """

    log_prob: Array
    raw_action: Any = ()


class VTraceParams(NamedTuple):
    """What the optimiser changes.

    Attributes:
      network: the network's variables.
      entropy_logit: the adaptive entropy cost's logarithm, over its speed; () where the cost is fixed.
    """

    network: Any
    entropy_logit: Any


def make_vtrace_agent(
    config: VTraceConfig,
    network: nn.Module,
    spec: EnvironmentSpec,
    *,
    frame_stack: int = 1,
    axis_name: str | None = None,
    num_on_device: int | None = None,
) -> Agent:
    """The agent of `config` over `network`.

    Args:
      config: the float fields become `LearnerState.settings`; the others are static.
      network: see `zerocopy_seed.networks`.
      spec: the environment's.
      frame_stack: observations seen at once.
      axis_name: mesh axis over which slots are spread, inside `shard_map`; None for one device.
      num_on_device: slots below this are on the device, the others in actors: metrics tell them apart.
    """
    distribution = make_distribution(spec.action)
    normalizer = make_normalizer(
        spec,
        observations=config.normalize_observations,
        rewards=config.normalize_rewards,
        frame_stack=frame_stack,
        axis_name=axis_name,
    )
    # The mean advantage of a minibatch is known only when all of it is.
    in_pieces = jax.default_backend() == "cpu" and not config.normalize_advantages
    max_rows = None
    if in_pieces:
        row = sum(4 * frame_stack * math.prod(leaf.shape) for leaf in jax.tree.leaves(spec.observation))
        max_rows = min(_CPU_MAX_ROWS, max(_CPU_MAX_BYTES // row, 1))

    def init(key: Key) -> LearnerState:
        learner_key, network_key = jax.random.split(key)
        settings = float_settings(config)
        entropy_logit: Any = ()
        if config.adaptive_entropy:
            entropy_logit = jnp.log(settings["entropy_cost"]) / settings["entropy_adjustment_speed"]
        params = VTraceParams(init_network(network, spec, frame_stack, network_key), entropy_logit)
        return LearnerState(
            params=params,
            opt_state=make_optimizer(config.optimizer, settings, settings["learning_rate"]).init(params),
            target=(),
            replay=(),
            statistics=normalizer.init(),
            key=learner_key,
            env_steps=counters.make_counter(),
            num_updates=counters.make_counter(),
            settings=settings,
        )

    def acting(state: LearnerState) -> ActingParams:
        return ActingParams(state.params.network, state.statistics)

    def initial_state(keys: Key, slots: Array) -> AgentState:
        return AgentState(initial_recurrent(network, spec, frame_stack, slots.shape[0]), Exploration(keys))

    def act(
        params: ActingParams, state: AgentState, timestep: TimeStep, mode: Mode
    ) -> tuple[Array, VTraceOutput, AgentState]:
        inputs, frames = network_input_step(state.recurrent, timestep)
        inputs = inputs._replace(observation=normalizer.observation(params.statistics, inputs.observation))
        output, core = network.apply(params.network, inputs, state.recurrent.core)
        policy = output.policy[0]
        key = state.exploration.key
        if mode is Mode.EVALUATE and config.eval_greedy:
            sample = distribution.mode(policy)
        else:
            key, uniforms = next_uniforms(key, distribution.num_uniforms)
            sample = distribution.sample(policy, uniforms)
        action = distribution.to_action(sample)
        recurrent = state.recurrent._replace(core=core, frames=frames, last_action=action)
        said = VTraceOutput(distribution.log_prob(policy, sample), sample if distribution.is_squashed else ())
        return action, said, AgentState(recurrent, Exploration(key))

    def clip_rewards(batch: Trajectory, settings: dict[str, Array]) -> Array:
        limit = settings["reward_clip"]
        return jnp.clip(batch.timestep.reward[1:], -limit, limit)

    def loss_fn(
        params: VTraceParams,
        batch: Trajectory,
        statistics: Any,
        settings: dict[str, Array],
        num_valid: Array,
    ) -> tuple[Array, dict[str, Array]]:
        inputs = network_input_unroll(batch.recurrent, batch.timestep, batch.action)
        inputs = inputs._replace(observation=normalizer.observation(statistics, inputs.observation))
        output, _ = network.apply(params.network, inputs, batch.recurrent.core)
        policy, values = output.policy[:-1], output.value

        valid = valid_transitions(batch.timestep.step_type)
        mask = valid.astype(jnp.float32)

        def mean(rows):
            return jnp.where(valid, rows, 0.0).sum() / num_valid

        taken = batch.actor_output.raw_action if distribution.is_squashed else batch.action
        log_prob = distribution.log_prob(policy, taken)
        log_rho = lax.stop_gradient(log_prob) - batch.actor_output.log_prob
        corrected = vtrace(
            lax.stop_gradient(values),
            normalizer.reward(statistics, clip_rewards(batch, settings)),
            settings["discount"] * batch.timestep.discount[1:],
            log_rho,
            valid,
            lambda_=settings["vtrace_lambda"],
            clip_rho=settings["clip_rho"],
            clip_c=settings["clip_c"],
            clip_pg_rho=settings["clip_pg_rho"],
        )
        advantages = corrected.advantages
        if config.normalize_advantages:
            center = sum_over_devices(mean(advantages), axis_name)
            variance = sum_over_devices(mean(jnp.square(advantages - center)), axis_name)
            advantages = jnp.where(valid, (advantages - center) * lax.rsqrt(variance + 1e-8), 0.0)
        # Where a further step the same way would leave the region, there is none (arXiv:1707.06347, eq. 7).
        policy_clip = settings["policy_clip"]
        highest, lowest = jnp.log1p(policy_clip), jnp.log1p(-jnp.minimum(policy_clip, 1.0))
        is_beyond = jnp.where(advantages > 0, log_rho > highest, log_rho < lowest)
        advantages = jnp.where(is_beyond, 0.0, advantages)

        policy_loss = mean(-advantages * log_prob)
        value_loss = mean(0.5 * jnp.square(corrected.targets - values[:-1]))
        entropy = mean(distribution.entropy(policy))
        share = mask.sum() / num_valid  # of all valid rows: 1 when the batch is whole and on one device
        entropy_cost = settings["entropy_cost"]
        entropy_loss = jnp.float32(0.0)
        if config.adaptive_entropy:
            speed = settings["entropy_adjustment_speed"]
            adaptive_cost = jnp.exp(speed * params.entropy_logit)
            entropy_loss = adaptive_cost * (lax.stop_gradient(entropy) - settings["target_entropy"] * share)
            entropy_cost = lax.stop_gradient(adaptive_cost)
        loss = policy_loss + settings["baseline_cost"] * value_loss - entropy_cost * entropy + entropy_loss
        ratio = clipped_ratio(log_rho, settings["clip_rho"])
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "importance_ratio": mean(ratio),
            "value": mean(values[:-1]),
        }
        if num_on_device is not None:
            on_device = (batch.slot < num_on_device)[None]
            for source, of_source in ((DEVICE, on_device), (ACTORS, ~on_device)):
                metrics[f"{source}_share"] = jnp.where(of_source, mask, 0.0).sum() / num_valid
                metrics[f"{source}_importance_ratio"] = mean(jnp.where(of_source, ratio, 0.0))
        if config.adaptive_entropy:
            metrics["entropy_cost"] = entropy_cost * share
        return loss, metrics

    def count_valid(batch: Trajectory) -> Array:
        valid = valid_transitions(batch.timestep.step_type)
        return sum_over_devices(valid.sum(dtype=jnp.int32), axis_name)

    def learn(state: LearnerState, trajectory: Trajectory) -> tuple[LearnerState, dict[str, Array]]:
        settings = state.settings
        learning_rate = decayed_learning_rate(settings, state.env_steps)
        optimizer = make_optimizer(config.optimizer, settings, learning_rate)
        rewards = clip_rewards(trajectory, settings)
        statistics = normalizer.add_rewards(state.statistics, trajectory, rewards, settings["discount"])

        def update(carry, batch: Trajectory):
            params, opt_state = carry
            # Sums over valid rows over their global number: a mean of means would weigh rows unequally.
            num_valid = jnp.maximum(count_valid(batch), 1).astype(jnp.float32)

            def gradients(params, piece):
                return jax.grad(loss_fn, has_aux=True)(params, piece, statistics, settings, num_valid)

            local_params = local_copy(params, axis_name)
            grads, metrics = sum_gradients(gradients, local_params, batch, max_rows=max_rows)
            grads, metrics = sum_over_devices((grads, metrics), axis_name)
            params, opt_state, applied = apply_gradients(optimizer, grads, params, opt_state)
            return (params, opt_state), metrics | applied

        next_key, shuffle_key = jax.random.split(state.key)
        (params, opt_state), metrics = scan_minibatches(
            update,
            (state.params, state.opt_state),
            trajectory,
            shuffle_key,
            num_passes=config.num_passes,
            num_minibatches=config.num_minibatches,
            num_shards=config.num_shards,
            axis_name=axis_name,
        )
        metrics["learning_rate"] = learning_rate
        metrics["num_skipped_updates"] *= config.num_passes * config.num_minibatches
        metrics["num_unusable_rows"] = count_stand_ins(trajectory, axis_name)
        for source in (DEVICE, ACTORS) if num_on_device is not None else ():
            share = jnp.maximum(
                metrics.pop(f"{source}_share"), 1e-9
            )  # 0 where nothing of it was in the batch
            metrics[f"{source}_importance_ratio"] /= share
        return state._replace(
            params=params,
            opt_state=opt_state,
            # Observations count only now: those of this batch were acted upon with the statistics before it.
            statistics=normalizer.add_observations(statistics, trajectory),
            key=next_key,
            env_steps=counters.increment(state.env_steps, count_valid(trajectory)),
            num_updates=counters.increment(state.num_updates, jnp.int32(1)),
        ), metrics

    def begin_from(state: LearnerState, params: ActingParams) -> LearnerState:
        network = state.params._replace(network=params.network)
        return state._replace(params=network, statistics=params.statistics)

    return Agent(init, acting, initial_state, act, learn, begin_from=begin_from)
