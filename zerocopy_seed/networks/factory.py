"""From a configuration and an environment's spec to a network."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import BoundedAction, DiscreteAction, EnvironmentSpec, MultiDiscreteAction
from zerocopy_seed.config import NetworkConfig
from zerocopy_seed.networks.conv import default_conv_method
from zerocopy_seed.networks.convolutions import make_convolutions
from zerocopy_seed.networks.core import GRU, LSTM
from zerocopy_seed.networks.custom import make_custom_network
from zerocopy_seed.networks.default import Network
from zerocopy_seed.networks.heads import BoundedPolicyValueHeads, PolicyValueHeads, dense_init
from zerocopy_seed.networks.torso import Torso
from zerocopy_seed.networks.types import stacked_shape
from zerocopy_seed.ops.distributions import make_distribution
from zerocopy_seed.types import split_action_mask

_ACTIVATIONS = {"relu": nn.relu, "tanh": nn.tanh, "silu": nn.silu}
_CORES = {"lstm": LSTM, "gru": GRU}


def make_network(
    config: NetworkConfig, spec: EnvironmentSpec, heads: Callable[..., nn.Module] | None = None
) -> nn.Module:
    """The network of a configuration, without parameters yet.

    Args:
      config: which network.
      spec: of the environment, its observation not stacked.
      heads: makes the default network's last module (None: a policy's and a value's), called as
        `heads(num_policy_params=P, scaled_init=..., hidden_sizes=..., activation=...)`, where
        `scaled_init(scale)` gives initial weights as configured and the others are for dense layers before
        its outputs; the module takes features [T, B, F] and the mask of legal actions [T, B, P] or None. A
        network of the user's own brings its own heads.

    Returns:
      A linen module that keeps the contract of `zerocopy_seed.networks`.

    Raises:
      UserError: for an action, observation or mask that does not fit, and for a faulty class of the user's.
    """
    num_params = make_distribution(spec.action).num_params
    observation, mask = split_action_mask(spec.observation)
    if not jax.tree.leaves(observation):
        raise UserError(
            "environment's observation",
            expected="an array beside action_mask",
            found="none",
            remedy="add one; a constant will do",
        )
    if mask is not None and isinstance(spec.action, BoundedAction):
        raise UserError(
            "environment's action_mask",
            expected="none with bounded actions, all of which are legal",
            found=f"shape {mask.shape}",
            remedy="give that entry another name",
        )
    if mask is not None and mask.shape != (num_params,):
        raise UserError(
            "environment's action_mask",
            expected=f"shape ({num_params},)",
            found=f"{mask.shape}",
            remedy="give one entry per action (per action of every head, in order)",
        )
    if config.name != "default":
        return make_custom_network(config, spec, num_params)
    scaled_init = functools.partial(dense_init, config.init)
    activation = _ACTIVATIONS[config.activation]
    convolutions = make_convolutions(config.torso, tuple(config.torso_channels))
    if convolutions is not None:
        _check_pictures(config.torso, observation, config.frame_stack, convolutions.smallest_picture)
    # What is recomputed on the way back need not be kept: jax.checkpoint.
    torso = (nn.remat(Torso) if config.rematerialize else Torso)(
        tuple(config.hidden_sizes),
        activation,
        scaled_init(2**0.5),
        convolutions,
        default_conv_method(),
        config.standardize_pictures,
        jnp.dtype(config.compute_dtype),
    )
    core = _CORES[config.core](config.core_size, scaled_init(1.0)) if config.core != "none" else None
    action_sizes: tuple[int, ...] = ()
    if isinstance(spec.action, DiscreteAction):
        action_sizes = (spec.action.num_values,)
    elif isinstance(spec.action, MultiDiscreteAction):
        action_sizes = tuple(spec.action.num_values)
    if heads is None:
        heads = PolicyValueHeads
        if isinstance(spec.action, BoundedAction):
            heads = functools.partial(
                BoundedPolicyValueHeads, scale=config.action_scale, init_std=config.init_action_std
            )
    return Network(
        torso,
        core,
        heads(
            num_policy_params=num_params,
            scaled_init=scaled_init,
            hidden_sizes=tuple(config.head_hidden_sizes),
            activation=activation,
        ),
        action_sizes,
        config.use_last_action,
        config.use_last_reward,
    )


def _check_pictures(torso: str, observation: Any, frame_stack: int, smallest: int) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(observation)
    pictures = [(path, leaf) for path, leaf in leaves if len(stacked_shape(leaf.shape, frame_stack)) == 3]
    found = ", ".join(f"observation{jax.tree_util.keystr(path)} {leaf.shape}" for path, leaf in leaves)
    if not pictures:
        raise UserError(
            f"network.torso {torso}",
            expected="an observation of shape (height, width, channels)",
            found=found,
            remedy='set network.torso = "mlp"',
        )
    for path, leaf in pictures:
        if min(leaf.shape[:2]) < smallest:
            raise UserError(
                f"network.torso {torso}",
                expected=f"pictures of {smallest} x {smallest} at least",
                found=f"observation{jax.tree_util.keystr(path)} {leaf.shape}",
                remedy='set network.torso = "mlp"',
            )
