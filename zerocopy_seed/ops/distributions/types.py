"""What a distribution over actions is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax

Array = jax.Array


def _itself(sample: Array) -> Array:
    return sample


@dataclasses.dataclass(frozen=True)
class ActionDistribution:
    """A family of distributions over one kind of action: pure functions of its parameters.

    All but the two numbers work over any leading dimensions, here [...]. A sample is the action itself where
    that is discrete, and what is squashed into it where it is bounded.

    Attributes:
      num_params: P, how many numbers a network must put out per row.
      num_uniforms: U, how many random numbers a sample takes.
      sample: params [..., P], uniforms [..., U] float32 in [0, 1) -> sample [...] or [..., heads] int32, or
        [..., A] float32.
      mode: params [..., P] -> a sample: the most probable action, or what the mean is squashed from.
      log_prob: params [..., P], sample -> [...] float32, of the action that the sample stands for; about -1e9
        for an illegal one.
      entropy: params [..., P] -> [...] float32, in nats, of the action.
      to_action: sample -> what the environment takes, [...], [..., heads] or [..., *shape].
      is_squashed: whether the sample is another thing than the action; it cannot be had back from it.
    """

    num_params: int
    num_uniforms: int
    sample: Callable[[Array, Array], Array]
    mode: Callable[[Array], Array]
    log_prob: Callable[[Array, Array], Array]
    entropy: Callable[[Array], Array]
    to_action: Callable[[Array], Array] = _itself
    is_squashed: bool = False
