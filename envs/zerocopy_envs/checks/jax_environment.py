"""The conformance check of a JAX environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.checks.stream import (
    check_spec,
    check_stream,
    check_timestep_types,
    random_actions,
)
from zerocopy_envs.errors import UserError, users_code
from zerocopy_envs.types import Array, Environment, Key, StepType, TimeStep
from zerocopy_envs.wrappers import Vectorized, episode_key

_NUM_SLOTS = 3
_NUM_PLAIN_STEPS = 20

# Compiling is nearly all of the check's time, and its programs run once.
_COMPILE_QUICKLY = {"xla_backend_optimization_level": 0}


def check_jax_environment(name: str, environment: Environment, num_steps: int, seed: int) -> None:
    """Types without running anything, then a random stream, then the same stream in other ways.

    Args:
      name: for messages.
      environment: to check.
      num_steps: length of the stream.
      seed: of everything random.

    Raises:
      UserError: the first thing that is wrong, in one line.
    """
    check_spec(name, environment.spec)
    check_types(name, environment)
    generator = np.random.default_rng(seed)
    keys = jax.random.split(jax.random.key(seed, impl="threefry2x32"), _NUM_SLOTS)
    actions = random_actions(generator, environment.spec.action, (num_steps, _NUM_SLOTS))
    vectorized = Vectorized(environment)
    rollout = _jit(lambda keys, actions: _rollout(vectorized, keys, actions))
    stream = jax.device_get(rollout(keys, actions))
    check_stream(name, environment.spec, stream)
    _check_slots_apart(name, rollout, keys, actions, stream, generator, environment)
    _check_plain(name, environment, keys[0], actions[:_NUM_PLAIN_STEPS, 0], stream)


def _rollout(vectorized: Vectorized, keys: Key, actions: Array) -> TimeStep:
    """Timesteps [T+1, B] of a reset and T steps."""
    state, first = vectorized.reset(keys)
    _, rest = jax.lax.scan(vectorized.step, state, actions)
    return jax.tree.map(lambda row, rows: jnp.concatenate([row[None], rows]), first, rest)


def check_types(name: str, environment: Environment) -> None:
    """Shapes, dtypes and structures of reset and step against the spec and each other; traced, not run.

    Raises:
      UserError: the first thing that is wrong, in one line.
    """
    key = jax.random.key(0, impl="threefry2x32")
    action = random_actions(np.random.default_rng(0), environment.spec.action, ())
    with users_code(name, "reset to run on a key"):
        after_reset = jax.eval_shape(environment.reset, key)
    _check_pair(name, "reset", after_reset)
    with users_code(name, "step to run on reset's state and an action"):
        after_step = jax.eval_shape(environment.step, after_reset[0], action)
    _check_pair(name, "step", after_step)
    for where, (state, timestep) in (("reset", after_reset), ("step", after_step)):
        check_timestep_types(name, where, environment.spec, timestep, ())
        leaves = [
            *(
                (f"state{jax.tree_util.keystr(path)}", leaf)
                for path, leaf in jax.tree.leaves_with_path(state)
            ),
            *((_field(path), leaf) for path, leaf in jax.tree.leaves_with_path(timestep)),
        ]
        for field, leaf in leaves:
            if leaf.weak_type:
                raise UserError(
                    f"{name}: {where}: {field}",
                    expected="a strongly typed array",
                    found=f"weakly typed {leaf.dtype}",
                    remedy="give it a dtype, as in jnp.int32(0); a weak type makes loops compile twice",
                )
    for part, before, after in (
        ("state", after_reset[0], after_step[0]),
        ("timestep", after_reset[1], after_step[1]),
    ):
        if jax.tree.structure(before) != jax.tree.structure(after):
            raise UserError(
                f"{name}: step: {part}",
                expected=f"reset's structure {jax.tree.structure(before)}",
                found=str(jax.tree.structure(after)),
            )
        for (path, old), new in zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True):
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise UserError(
                    f"{name}: step: {part}{jax.tree_util.keystr(path)}",
                    expected=f"{old.dtype}{list(old.shape)} as reset returns it",
                    found=f"{new.dtype}{list(new.shape)}",
                )


def _check_pair(name: str, where: str, returned: Any) -> None:
    if not (isinstance(returned, tuple) and len(returned) == 2):
        found = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
        raise UserError(f"{name}: {where}", expected="a state and a TimeStep", found=found)


def _check_slots_apart(
    name: str,
    rollout: Any,
    keys: Key,
    actions: np.ndarray,
    stream: TimeStep,
    generator: Any,
    environment: Environment,
) -> None:
    """Slot 0 again, with other actions after each LAST and other neighbours: it must be bit for bit equal."""
    others = random_actions(generator, environment.spec.action, actions.shape[:2])
    after_last = stream.step_type[:-1, 0] == StepType.LAST
    others[:, 0] = np.where(after_last.reshape(-1, *(1,) * (actions.ndim - 2)), others[:, 0], actions[:, 0])
    neighbours = jax.random.split(jax.random.fold_in(keys[0], 1), _NUM_SLOTS - 1)
    again = jax.device_get(rollout(jnp.concatenate([keys[:1], neighbours]), others))
    for path, leaf in jax.tree.leaves_with_path(again):
        original = dict(jax.tree.leaves_with_path(stream))[path]
        if not np.array_equal(leaf[:, 0], original[:, 0]):
            t = int(np.nonzero((leaf[:, 0] != original[:, 0]).reshape(len(leaf), -1).any(-1))[0][0])
            raise UserError(
                f"{name}: step {t}: {_field(path)}",
                expected="the same for the same key and actions, whoever shares the batch",
                found=f"{_short(leaf[t, 0])} after {_short(original[t, 0])}",
                remedy="take all randomness from the key",
            )


def _check_plain(
    name: str, environment: Environment, key: Key, actions: np.ndarray, stream: TimeStep
) -> None:
    """Slot 0's first episode step by step, without vmap, scan and the resetting wrapper."""
    reset, step = _jit(environment.reset), _jit(environment.step)
    state, timestep = reset(episode_key(key, 0))
    for t in range(len(actions) + 1):
        wanted = jax.tree.map(lambda rows: rows[t, 0], stream)  # noqa: B023
        for (path, plain), vector in zip(
            jax.tree.leaves_with_path(timestep), jax.tree.leaves(wanted), strict=True
        ):
            if not np.allclose(plain, vector, rtol=1e-4, atol=1e-4):
                raise UserError(
                    f"{name}: step {t}: {_field(path)}",
                    expected="the same under jit alone as under vmap and scan",
                    found=f"{_short(plain)} and {_short(vector)}",
                )
        if t == len(actions) or timestep.step_type == StepType.LAST:
            return
        state, timestep = step(state, actions[t])


def _jit(function: Callable[..., Any]) -> Callable[..., Any]:
    on_cpu = jax.default_backend() == "cpu"
    return jax.jit(function, compiler_options=_COMPILE_QUICKLY if on_cpu else None)


def _field(path: Any) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def _short(values: Any) -> str:
    return np.array2string(np.asarray(values), threshold=6, precision=4).replace("\n", "")
