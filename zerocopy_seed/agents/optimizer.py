"""What every agent's `learn` shares: settings as arrays, the step size's decay, the optimiser."""

from __future__ import annotations

from typing import Any, Literal

import jax
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


def apply_gradients(
    optimizer: optax.GradientTransformation, grads: Any, params: Any, opt_state: Any
) -> tuple[Any, Any, dict[str, Array]]:
    """One step of `optimizer`; where gradients or their norm are not finite nothing changes.

    Args:
      optimizer: as `make_optimizer` makes it.
      grads: a pytree like `params`.
      params: what is optimised.
      opt_state: of `optimizer`.

    Returns:
      Parameters, the optimiser's state, and the metrics `grad_norm` and `num_skipped_updates` (0 or 1).
    """
    updates, new_opt_state = optimizer.update(grads, opt_state, params)
    grad_norm = optax.tree.norm(grads)
    applied = choose(
        jnp.isfinite(grad_norm), (optax.apply_updates(params, updates), new_opt_state), (params, opt_state)
    )
    is_skipped = 1.0 - jnp.isfinite(grad_norm).astype(jnp.float32)
    return *applied, {"grad_norm": grad_norm, "num_skipped_updates": is_skipped}


def choose(condition: Array, chosen: Any, other: Any) -> Any:
    """One of two pytrees, by a scalar: no branch, since under vmap one becomes a choice anyway."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), chosen, other)
