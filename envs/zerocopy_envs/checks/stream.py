"""What a spec and a stream of timesteps must look like, in numpy: shared by JAX and host environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.trees import named_leaves
from zerocopy_envs.types import (
    ActionSpec,
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
    StepType,
    TimeStep,
)
from zerocopy_envs.usable import fits


def check_spec(name: str, spec: EnvironmentSpec) -> None:
    """The spec alone: leaf types, action sizes, `action_mask`.

    Raises:
      UserError: in one line.
    """
    for path, leaf in named_leaves(spec.observation):
        if not isinstance(leaf, ArraySpec):
            raise UserError(f"{name}: spec.{path}", expected="an ArraySpec", found=type(leaf).__name__)
    action = spec.action
    if isinstance(action, DiscreteAction):
        sizes: tuple[int, ...] = (action.num_values,)
    elif isinstance(action, MultiDiscreteAction):
        sizes = action.num_values
    elif isinstance(action, BoundedAction):
        sizes = action.shape
    else:
        raise UserError(f"{name}: spec.action", expected="an ActionSpec", found=type(action).__name__)
    if not sizes or min(sizes) < 1:
        raise UserError(f"{name}: spec.action", expected="at least one action", found=str(action))
    if spec.max_episode_steps is not None and spec.max_episode_steps < 1:
        raise UserError(
            f"{name}: spec.max_episode_steps", expected=">= 1 or None", found=str(spec.max_episode_steps)
        )
    if isinstance(spec.observation, dict) and "action_mask" in spec.observation:
        mask = spec.observation["action_mask"]
        if isinstance(action, BoundedAction) or mask.shape != (sum(sizes),) or mask.dtype != np.bool_:
            raise UserError(
                f"{name}: spec.observation.action_mask",
                expected=f"bool [{sum(sizes)}] beside discrete actions",
                found=f"{mask.dtype}{list(mask.shape)} with {action}",
            )


def check_timestep_types(
    name: str, where: str, spec: EnvironmentSpec, timestep: Any, lead: tuple[int, ...]
) -> None:
    """Field dtypes and shapes of a timestep (arrays, or what `eval_shape` gives) against the spec.

    Args:
      name: the environment, for messages.
      where: such as `reset`, for messages.
      spec: the environment's.
      timestep: to check.
      lead: its batch dimensions.

    Raises:
      UserError: naming the field.
    """
    if not isinstance(timestep, TimeStep):
        raise UserError(f"{name}: {where}", expected="a TimeStep", found=type(timestep).__name__)
    wanted = [("step_type", np.int8, ()), ("reward", np.float32, ()), ("discount", np.float32, ())]
    found = [timestep.step_type, timestep.reward, timestep.discount]
    in_spec, in_step = list(named_leaves(spec.observation)), list(named_leaves(timestep.observation))
    if [path for path, _ in in_spec] != [path for path, _ in in_step]:
        raise UserError(
            f"{name}: {where}: observation",
            expected=f"the spec's leaves {[path for path, _ in in_spec]}",
            found=str([path for path, _ in in_step]),
        )
    wanted += [(path, leaf.dtype, leaf.shape) for path, leaf in in_spec]
    found += [leaf for _, leaf in in_step]
    for (path, dtype, shape), array in zip(wanted, found, strict=True):
        if not hasattr(array, "dtype") or array.dtype != dtype or tuple(array.shape) != (*lead, *shape):
            got = f"{array.dtype}{list(array.shape)}" if hasattr(array, "dtype") else type(array).__name__
            raise UserError(
                f"{name}: {where}: {path}",
                expected=f"{np.dtype(dtype)}{[*lead, *shape]}",
                found=got,
                remedy="the spec and the arrays must agree",
            )


def check_stream(name: str, spec: EnvironmentSpec, timesteps: TimeStep) -> int:
    """Semantics of recorded timesteps.

    Args:
      name: the environment, for messages.
      spec: the environment's.
      timesteps: numpy, [T, B, ...]; row 0 is the reset's.

    Returns:
      How many episodes ended.

    Raises:
      UserError: naming the step and the slot.
    """
    kind, reward, discount = timesteps.step_type, timesteps.reward, timesteps.discount
    first, last = kind == StepType.FIRST, kind == StepType.LAST

    def refuse(wrong: np.ndarray, field: str, expected: str, values: np.ndarray, start: int = 0) -> None:
        if wrong.any():
            t, slot = (int(index[0]) for index in np.nonzero(wrong)[:2])
            found = values[t + start, slot]
            raise UserError(
                f"{name}: step {t + start}, slot {slot}: {field}", expected=expected, found=str(found)
            )

    # First of all, since their slot then begins anew without a LAST.
    refuse(~fits(reward, np), "reward", "a finite number below 2^64", reward)
    for path, values in named_leaves(timesteps.observation):
        if np.issubdtype(values.dtype, np.floating):
            refuse(~fits(values, np), path, "finite numbers below 2^64", values)
    refuse(~np.isin(kind, list(StepType)), "step_type", "0, 1 or 2", kind)
    refuse(~first[:1], "step_type", "FIRST from reset", kind)
    refuse(~first[1:] & last[:-1], "step_type", "FIRST on the step after a LAST", kind, 1)
    refuse(first[1:] & ~last[:-1], "step_type", "FIRST only on the step after a LAST", kind, 1)
    refuse(first & (reward != 0), "reward", "0 at FIRST", reward)
    refuse(first & (discount != 1), "discount", "1 at FIRST", discount)
    refuse((discount != 0) & (discount != 1), "discount", "0 or 1", discount)
    refuse((discount == 0) & ~last, "discount", "0 at LAST only", discount)
    observations = zip(named_leaves(spec.observation), named_leaves(timesteps.observation), strict=True)
    for (path, leaf), (_, values) in observations:
        if leaf.minimum is not None:
            refuse(values < leaf.minimum - _slack(leaf.minimum), path, f">= {leaf.minimum}", values)
        if leaf.maximum is not None:
            refuse(values > leaf.maximum + _slack(leaf.maximum), path, f"<= {leaf.maximum}", values)
    if spec.max_episode_steps is not None:
        length = np.zeros(kind.shape, np.int64)
        for t in range(1, len(kind)):
            length[t] = np.where(first[t], 0, length[t - 1] + 1)
        over = (length > spec.max_episode_steps) | ((length == spec.max_episode_steps) & ~last)
        refuse(over, "steps in this episode", f"LAST by max_episode_steps = {spec.max_episode_steps}", length)
    return int(last.sum())


def _slack(bound: float) -> float:
    """Rounding in float32 may step over a bound."""
    return 1e-5 * (1 + abs(bound))


def random_actions(generator: np.random.Generator, action: ActionSpec, lead: tuple[int, ...]) -> np.ndarray:
    """Actions [*lead, ...] in the spec's dtype and range; masks are not looked at."""
    if isinstance(action, DiscreteAction):
        return generator.integers(0, action.num_values, lead, np.int32)
    if isinstance(action, MultiDiscreteAction):
        return generator.integers(0, np.array(action.num_values), (*lead, len(action.num_values)), np.int32)
    return generator.uniform(-1, 1, (*lead, *action.shape)).astype(np.float32)
