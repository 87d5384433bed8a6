"""Observations and rewards on a common scale, by running statistics that are part of the learner's state.

Observations: each number of a float array minus its running mean, over its running standard deviation,
clipped to +-`CLIP`. Pictures of bytes, integers and masks stay as they are. Where frames are stacked, every
frame is normalised alike; those before the episode are zeros, and are normalised as zeros.

Rewards: over the running standard deviation of discounted sums of past rewards, not centred, clipped to
+-`CLIP`, as in OpenAI Baselines' VecNormalize (see "Implementation Matters in Deep RL", Engstrom et al. 2020,
arXiv:2005.12729, section 3). Unlike there, a sum begins with its unroll at the latest, so nothing is kept for
each slot; the scale is that of what an unroll earns, and longer unrolls make it smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_envs.errors import UserError
from zerocopy_envs.trees import named_leaves
from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.ops.running_moments import RunningMoments, add_rows, make_moments, mean_and_variance
from zerocopy_seed.recurrent import join_frames
from zerocopy_seed.types import Array, Trajectory, split_action_mask, valid_transitions

CLIP = 10.0
"""Largest normalised number."""
_EPSILON = 1e-8  # added to variances


class Statistics(NamedTuple):
    """`observation`: of each float array, `reward`: of discounted sums; () for what is not normalised."""

    observation: RunningMoments | Any
    reward: RunningMoments | Any


@dataclasses.dataclass(frozen=True)
class Normalizer:
    """Pure functions of the statistics; what is not normalised passes through them unchanged.

    Attributes:
      init: () -> Statistics of nothing, which change nothing; () where nothing is normalised.
      observation: Statistics, a stacked observation [T, B, ...] -> the same, normalised.
      reward: Statistics, rewards [T, B] -> the same, normalised.
      add_rewards: Statistics, Trajectory, rewards [T, B], discount -> Statistics.
      add_observations: Statistics, Trajectory -> Statistics, with what was validly acted upon.
    """

    init: Callable[[], Any]
    observation: Callable[[Any, Any], Any]
    reward: Callable[[Any, Array], Array]
    add_rewards: Callable[[Any, Trajectory, Array, Array], Any]
    add_observations: Callable[[Any, Trajectory], Any]


def make_normalizer(
    spec: EnvironmentSpec,
    *,
    observations: bool,
    rewards: bool,
    frame_stack: int,
    axis_name: str | None,
) -> Normalizer:
    """A normaliser of observations, of rewards, of both or of neither.

    Args:
      spec: of the environment.
      observations: whether observations are normalised.
      rewards: whether rewards are.
      frame_stack: observations seen at once.
      axis_name: mesh axis over which slots are spread, inside `shard_map`; None for one device.

    Raises:
      UserError: observations are to be normalised and none of them is float.
    """
    rest, _ = split_action_mask(spec.observation)
    leaves = jax.tree.leaves(rest)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    if observations and not any(is_float):
        raise UserError(
            "agent.normalize_observations",
            expected="an environment with float observations",
            found=", ".join(f"{path} {leaf.dtype}" for path, leaf in named_leaves(rest, "observation")),
            remedy="set it to false: pictures of bytes are scaled to [0, 1] anyway",
        )

    def floats(observation: Any) -> list[Array]:
        rest, _ = split_action_mask(observation)
        return [x for x, chosen in zip(jax.tree.leaves(rest), is_float, strict=True) if chosen]

    def init() -> Any:
        if not (observations or rewards):
            return ()
        shapes = [leaf.shape for leaf, chosen in zip(leaves, is_float, strict=True) if chosen]
        return Statistics(make_moments(shapes) if observations else (), make_moments([()]) if rewards else ())

    def observation(statistics: Any, stacked: Any) -> Any:
        if not observations:
            return stacked
        rest, mask = split_action_mask(stacked)
        moments = iter(mean_and_variance(statistics.observation))

        def normalize(x: Array, spec: Any) -> Array:
            if not jnp.issubdtype(spec.dtype, jnp.floating):
                return x
            mean, variance = (
                join_frames([m] * frame_stack, len(spec.shape)) if frame_stack > 1 else m
                for m in next(moments)
            )
            scaled = (x.astype(jnp.float32) - mean[None, None]) * lax.rsqrt(variance + _EPSILON)[None, None]
            return jnp.clip(scaled, -CLIP, CLIP)

        normalized = jax.tree.map(normalize, rest, split_action_mask(spec.observation)[0])
        return normalized if mask is None else {**normalized, "action_mask": mask}

    def reward(statistics: Any, reward: Array) -> Array:
        if not rewards:
            return reward
        ((_, variance),) = mean_and_variance(statistics.reward)
        return jnp.clip(reward * lax.rsqrt(variance + _EPSILON), -CLIP, CLIP)

    def add_rewards(statistics: Any, trajectory: Trajectory, reward: Array, discount: Array) -> Any:
        if not rewards:
            return statistics
        valid = valid_transitions(trajectory.timestep.step_type)
        sums = discounted_sums(reward, valid, discount)
        return statistics._replace(reward=add_rows(statistics.reward, [sums], valid, axis_name=axis_name))

    def add_observations(statistics: Any, trajectory: Trajectory) -> Any:
        if not observations:
            return statistics
        valid = valid_transitions(trajectory.timestep.step_type)
        rows = [x[:-1] for x in floats(trajectory.timestep.observation)]
        return statistics._replace(
            observation=add_rows(statistics.observation, rows, valid, axis_name=axis_name)
        )

    return Normalizer(init, observation, reward, add_rewards, add_observations)


def discounted_sums(rewards: Array, valid: Array, discount: Array) -> Array:
    """Of each row's reward and those before it, since the episode or the unroll began.

    Args:
      rewards: [T, B] float32, earned by each action.
      valid: [T, B] bool; a row that is not cuts the sum, and is 0.
      discount: scalar.

    Returns:
      [T, B]: sum_t = reward_t + discount * sum_{t-1}.
    """

    def forward(total: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, counts = row
        total = jnp.where(counts, reward + discount * total, 0.0)
        return total, total

    return lax.scan(forward, jnp.zeros_like(rewards[0]), (rewards, valid))[1]
