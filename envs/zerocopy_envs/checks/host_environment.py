"""The conformance check of a host environment, without JAX."""

from __future__ import annotations

import numpy as np

from zerocopy_envs.checks.stream import (
    check_spec,
    check_stream,
    check_timestep_types,
    map_leaves,
    named_leaves,
    random_actions,
)
from zerocopy_envs.errors import UserError
from zerocopy_envs.types import HostEnvironment, StepType, TimeStep


def check_host_environment(name: str, environment: HostEnvironment, num_steps: int, seed: int) -> None:
    """A random stream, then the same seeds and actions again, with other actions after each LAST.

    Args:
      name: for messages.
      environment: to check; left open.
      num_steps: length of the stream.
      seed: of the actions; slots get `seed`, `seed + 1`, ...

    Raises:
      UserError: the first thing that is wrong, in one line.
    """
    spec, num_envs = environment.spec, environment.num_envs
    check_spec(name, spec)
    generator = np.random.default_rng(seed)
    actions = random_actions(generator, spec.action, (num_steps, num_envs))
    stream = _play(name, environment, actions, seed)
    check_stream(name, spec, stream)
    after_last = (stream.step_type[:-1] == StepType.LAST).reshape(
        num_steps, num_envs, *(1,) * (actions.ndim - 2)
    )
    others = np.where(after_last, random_actions(generator, spec.action, (num_steps, num_envs)), actions)
    again = _play(name, environment, others, seed)
    for (path, old), (_, new) in zip(
        named_leaves(tuple(stream), "timestep"), named_leaves(tuple(again), "timestep"), strict=True
    ):
        if not np.array_equal(old, new):
            raise UserError(
                f"{name}: {path}",
                expected="the same stream from the same seeds and actions, those after a LAST ignored",
                found="another one",
            )


def _play(name: str, environment: HostEnvironment, actions: np.ndarray, seed: int) -> TimeStep:
    """Timesteps [T+1, N] in each slot's own order; copies, since `recv` may reuse its buffers."""
    num_steps, num_envs = actions.shape[:2]
    first = environment.reset([seed + slot for slot in range(num_envs)])
    check_timestep_types(name, "reset", environment.spec, first, (num_envs,))
    rows = [[_row(first, slot)] for slot in range(num_envs)]
    slots, num_pending = np.arange(num_envs), 0
    while min(map(len, rows)) <= num_steps:
        environment.send(np.stack([actions[min(len(rows[slot]), num_steps) - 1, slot] for slot in slots]))
        num_pending += len(slots)
        slots, timestep = environment.recv()
        num_pending -= len(slots)
        check_timestep_types(name, "recv", environment.spec, timestep, (len(slots),))
        for i, slot in enumerate(slots):
            rows[slot].append(_row(timestep, i))
    while num_pending > 0:
        num_pending -= len(environment.recv()[0])
    by_slot = [map_leaves(lambda *leaves: np.stack(leaves), *row[: num_steps + 1]) for row in rows]
    return map_leaves(lambda *leaves: np.stack(leaves, axis=1), *by_slot)


def _row(timestep: TimeStep, index: int) -> TimeStep:
    return map_leaves(lambda leaf: np.array(leaf[index]), timestep)
