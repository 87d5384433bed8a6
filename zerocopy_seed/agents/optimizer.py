"""What every agent's `learn` shares: settings as arrays, the step size's decay, the optimiser."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import optax

from zerocopy_seed.config import LearningConfig
from zerocopy_seed.config_sweep import learning_settings
from zerocopy_seed.ops import counters
from zerocopy_seed.types import Array, Counter


def float_settings(config: LearningConfig) -> dict[str, Array]:
    """The float fields of an agent's configuration that learning reads, as float32 scalars.

    They are `LearnerState.settings`. The fields may be JAX's tracers, under a `vmap` over settings.
    """
    return {name: jnp.float32(getattr(config, name)) for name in learning_settings(config)}


def decayed_learning_rate(settings: dict[str, Array], env_steps: Counter) -> Array:
    """The step size after `env_steps`: it falls linearly to 0."""
    progress = counters.as_float(env_steps) / settings["learning_rate_decay_env_steps"]
    return settings["learning_rate"] * jnp.maximum(0.0, 1.0 - progress)


def make_optimizer(
    name: Literal["adam", "rmsprop"], settings: dict[str, Array], learning_rate: Array
) -> optax.GradientTransformation:
    """Clipping by the global norm, the optimiser `name`, and the step; settings do not shape its state."""
    if name == "adam":
        scale = optax.scale_by_adam(
            settings["adam_b1"], settings["adam_b2"], eps=settings["optimizer_epsilon"]
        )
    else:
        scale = optax.scale_by_rms(
            settings["rmsprop_decay"], eps=settings["optimizer_epsilon"], eps_in_sqrt=False
        )
    return optax.chain(
        optax.clip_by_global_norm(settings["max_grad_norm"]), scale, optax.scale(-learning_rate)
    )
