"""Distributions over actions, as functions of a network's output."""

from __future__ import annotations

import math

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import ActionSpec, DiscreteAction, MultiDiscreteAction
from zerocopy_seed.ops.distributions.categorical import (
    ILLEGAL_LOGIT,
    apply_action_mask,
    make_categorical,
    make_multi_categorical,
)
from zerocopy_seed.ops.distributions.squashed_gaussian import make_squashed_gaussian
from zerocopy_seed.ops.distributions.types import ActionDistribution

__all__ = ["ILLEGAL_LOGIT", "ActionDistribution", "apply_action_mask", "make_distribution"]


def make_distribution(action_spec: ActionSpec) -> ActionDistribution:
    """The distribution for a kind of action: categorical, one categorical per head, or a squashed Gaussian.

    Raises:
      UserError: for bounded actions without any number.
    """
    if isinstance(action_spec, DiscreteAction):
        return make_categorical(action_spec.num_values)
    if isinstance(action_spec, MultiDiscreteAction):
        return make_multi_categorical(action_spec.num_values)
    if math.prod(action_spec.shape) == 0:
        raise UserError(
            f"environment's action {action_spec}",
            expected="a number at least",
            found="none",
            remedy="choose an environment that can be acted upon",
        )
    return make_squashed_gaussian(action_spec.shape)
