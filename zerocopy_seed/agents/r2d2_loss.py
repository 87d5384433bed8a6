"""What R2D2 makes of windows of experience: Q-values, the loss, and the masses they are drawn by."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from zerocopy_envs.types import TimeStep
from zerocopy_seed.config import R2D2Config
from zerocopy_seed.networks import NetworkOutput
from zerocopy_seed.ops.distributions import ILLEGAL_LOGIT
from zerocopy_seed.ops.exploration import is_legal
from zerocopy_seed.ops.q_learning import n_step_double_q, n_step_returns, q_of, sequence_priority
from zerocopy_seed.recurrent import network_input_unroll
from zerocopy_seed.replay import Windows
from zerocopy_seed.types import Array, valid_transitions


def q_values(output: NetworkOutput, *, dueling: bool) -> Array:
    """Q [T, B, A] from a network's heads: V + A - mean A of legal actions (arXiv:1511.06581, eq. 9), or A.

    Illegal actions keep `ILLEGAL_LOGIT`. Where no action is legal, as some environments say of an episode's
    end, all are worth V, or 0.
    """
    advantage = output.policy
    some_legal = (advantage > 0.5 * ILLEGAL_LOGIT).any(-1, keepdims=True)
    if not dueling:
        return jnp.where(some_legal, advantage, 0.0)
    advantage = jnp.where(some_legal, advantage, 0.0)
    legal = is_legal(advantage)
    mean = jnp.where(legal, advantage, 0.0).sum(-1, keepdims=True) / legal.sum(-1, keepdims=True)
    return jnp.where(legal, output.value[..., None] + (advantage - mean), ILLEGAL_LOGIT)


def initial_mass(config: R2D2Config, windows: Windows, settings: dict[str, Array]) -> Array:
    """Masses [n] of windows from what the behaviour policy said of them: its largest Q-values bootstrap."""
    timestep, output = jax.tree.map(lambda x: x[config.burn_in :], (windows.timestep, windows.actor_output))
    valid = valid_transitions(timestep.step_type)
    rewards, discounts = _rewards_and_discounts(timestep, settings)
    targets = n_step_returns(
        output.q_max, rewards, discounts, valid, n_step=config.n_step, rescale=config.rescale_values
    )
    return _mass(config, targets - output.q_value[:-1], _trained_rows(config, valid), settings)


def window_loss(
    config: R2D2Config,
    network: nn.Module,
    params: Any,
    target_params: Any,
    windows: Windows,
    weights: Array,
    settings: dict[str, Array],
) -> tuple[Array, tuple[Array, dict[str, Array]]]:
    """Half the squared TD errors, summed over time and averaged over the global batch (R2D2, sec. 2.3).

    Args:
      config: what is static.
      network: see `zerocopy_seed.networks`.
      params: the variables that learn.
      target_params: those of the target network.
      windows: [W, n], this device's.
      weights: [n] importance weights.
      settings: the floats of `config`.

    Returns:
      This device's share of the loss; the windows' new masses [n], and its share of the metrics.
    """
    inputs = network_input_unroll(windows.recurrent, windows.timestep, windows.action)
    core = windows.recurrent.core
    if config.start_state == "zero":
        core = jax.tree.map(jnp.zeros_like, core)
    cores = core, core
    if config.burn_in and jax.tree.leaves(core):
        warm_up = jax.tree.map(lambda x: x[: config.burn_in], inputs)
        cores = tuple(
            network.apply(variables, warm_up, core)[1]
            for variables in (lax.stop_gradient(params), target_params)
        )
    inputs, timestep, action = jax.tree.map(
        lambda x: x[config.burn_in :], (inputs, windows.timestep, windows.action)
    )
    q_online, q_target = (
        q_values(network.apply(variables, inputs, core)[0], dueling=config.dueling)
        for variables, core in zip((params, target_params), cores, strict=True)
    )
    valid = valid_transitions(timestep.step_type)
    rewards, discounts = _rewards_and_discounts(timestep, settings)
    td_errors = n_step_double_q(
        q_online,
        q_target,
        action,
        rewards,
        discounts,
        valid,
        n_step=config.n_step,
        rescale=config.rescale_values,
        double=config.double_q,
    ).td_errors
    trained = _trained_rows(config, valid)
    num_trained = jnp.maximum(trained.sum(0), 1)

    def mean(rows: Array) -> Array:
        """Over the trained rows of each window, then over the global batch."""
        return (jnp.where(trained, rows, 0.0).sum(0) / num_trained).sum() / config.batch_size

    squares = jnp.where(trained, 0.5 * jnp.square(td_errors), 0.0)
    loss = (weights * squares.sum(0)).sum() / config.batch_size
    metrics = {
        "loss": loss,
        "td_error": mean(jnp.abs(td_errors)),
        "q_value": mean(q_of(q_online[:-1], action)),
    }
    return loss, (_mass(config, td_errors, trained, settings), metrics)


def _rewards_and_discounts(timestep: TimeStep, settings: dict[str, Array]) -> tuple[Array, Array]:
    reward_clip = settings["reward_clip"]
    rewards = jnp.clip(timestep.reward[1:], -reward_clip, reward_clip)
    return rewards, settings["discount"] * timestep.discount[1:]


def _trained_rows(config: R2D2Config, valid: Array) -> Array:
    """Valid rows [T, n] of windows without their burn-in, less the look-ahead."""
    return valid & (jnp.arange(valid.shape[0]) < config.sequence_length)[:, None]


def _mass(config: R2D2Config, td_errors: Array, trained: Array, settings: dict[str, Array]) -> Array:
    if config.sampling == "uniform":
        return trained.any(0).astype(jnp.float32)
    priority = sequence_priority(td_errors, trained, eta=settings["priority_eta"])
    mass = jnp.where(priority > 0.0, priority ** settings["priority_exponent"], 0.0)
    return jnp.where(jnp.isfinite(mass), mass, 0.0)  # what overflows is not drawn again
