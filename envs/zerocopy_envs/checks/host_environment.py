"""The conformance check of a host environment, without JAX."""

from __future__ import annotations

import numpy as np

from zerocopy_envs.checks.stream import (
    check_spec,
    check_stream,
    check_timestep_types,
    random_actions,
)
from zerocopy_envs.errors import UserError
from zerocopy_envs.trees import map_leaves, named_leaves
from zerocopy_envs.types import HostEnvironment, StepType, TimeStep


def check_host_environment(name: str, environment: HostEnvironment, num_steps: int, seed: int) -> None:
    """A random stream, then every second slot of it again, with other neighbours and actions after LAST.

    Args:
      name: for messages.
      environment: to check; left open. Slots are told apart only if there are two.
      num_steps: length of the stream.
      seed: of the actions; slots get `seed`, `seed + 1`, ...

    Raises:
      UserError: the first thing that is wrong, in one line.
    """
    spec, num_envs = environment.spec, environment.num_envs
    check_spec(name, spec)
    generator = np.random.default_rng(seed)
    actions = random_actions(generator, spec.action, (num_steps, num_envs))
    seeds = np.arange(seed, seed + num_envs)
    stream = _play(name, environment, actions, seeds)
    check_stream(name, spec, stream)
    other_slots = np.arange(num_envs) % 2 == 1
    replaced = (stream.step_type[:-1] == StepType.LAST) | other_slots
    others = random_actions(generator, spec.action, (num_steps, num_envs))
    others = np.where(replaced.reshape(num_steps, num_envs, *(1,) * (actions.ndim - 2)), others, actions)
    again = _play(name, environment, others, np.where(other_slots, seeds + num_envs, seeds))
    check_stream(name, spec, again)
    for (path, old), (_, new) in zip(
        named_leaves(tuple(stream), "timestep"), named_leaves(tuple(again), "timestep"), strict=True
    ):
        differs = (old != new).reshape(num_steps + 1, num_envs, -1).any(-1) & ~other_slots
        if differs.any():
            t, slot = (int(index[0]) for index in np.nonzero(differs))
            raise UserError(
                f"{name}: step {t}, slot {slot}: {_field(path)}",
                expected="the same from the same seed and actions, whatever other slots do and whatever "
                "action follows a LAST",
                found="another",
            )


def _play(name: str, environment: HostEnvironment, actions: np.ndarray, seeds: np.ndarray) -> TimeStep:
    """Timesteps [T+1, N] in each slot's own order."""
    num_steps, num_envs = actions.shape[:2]
    first = environment.reset(seeds.tolist())
    check_timestep_types(name, "reset", environment.spec, first, (num_envs,))
    returned = [(first, map_leaves(np.copy, first))]
    rows = [[_row(first, slot)] for slot in range(num_envs)]
    slots, num_pending = np.arange(num_envs), 0
    while min(map(len, rows)) <= num_steps:
        environment.send(np.stack([actions[min(len(rows[slot]), num_steps) - 1, slot] for slot in slots]))
        num_pending += len(slots)
        slots, timestep = environment.recv()
        _check_slots(name, slots, num_envs)
        num_pending -= len(slots)
        check_timestep_types(name, "recv", environment.spec, timestep, (len(slots),))
        returned.append((timestep, map_leaves(np.copy, timestep)))
        for i, slot in enumerate(slots):
            rows[slot].append(_row(timestep, i))
    while num_pending > 0:
        num_pending -= len(environment.recv()[0])
    for timestep, copy in returned:
        _check_untouched(name, timestep, copy)
    by_slot = [map_leaves(lambda *leaves: np.stack(leaves), *row[: num_steps + 1]) for row in rows]
    return map_leaves(lambda *leaves: np.stack(leaves, axis=1), *by_slot)


def _row(timestep: TimeStep, index: int) -> TimeStep:
    return map_leaves(lambda leaf: np.array(leaf[index]), timestep)


def _check_slots(name: str, slots: np.ndarray, num_envs: int) -> None:
    slots = np.asarray(slots)
    whole = slots.ndim == 1 and slots.dtype.kind in "iu" and len(slots) > 0
    if not whole or len(np.unique(slots)) != len(slots) or slots.min() < 0 or slots.max() >= num_envs:
        raise UserError(
            f"{name}: recv: slots",
            expected=f"different whole numbers from 0 to {num_envs - 1}",
            found=f"{slots.dtype}{slots.tolist()}",
        )


def _check_untouched(name: str, timestep: TimeStep, copy: TimeStep) -> None:
    for (path, now), (_, then) in zip(
        named_leaves(tuple(timestep), "timestep"), named_leaves(tuple(copy), "timestep"), strict=True
    ):
        if now.tobytes() != then.tobytes():
            raise UserError(
                f"{name}: recv: {_field(path)}",
                expected="arrays that later calls leave alone",
                found="one that was written over",
                remedy="return a copy",
            )


def _field(path: str) -> str:
    """`timestep[3].pixels` is `observation.pixels`."""
    index = int(path[len("timestep[")])
    return TimeStep._fields[index] + path[len("timestep[0]") :]
