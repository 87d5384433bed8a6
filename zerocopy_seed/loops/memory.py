"""What a run needs of memory, what there is, and a refusal before anything is compiled or written."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import Config, R2D2Config
from zerocopy_seed.loops.on_device import TrainState
from zerocopy_seed.replay_layout import make_layout


def num_bytes(tree: Any) -> int:
    """Bytes of a pytree's arrays, or of their `jax.ShapeDtypeStruct`s."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def in_gigabytes(size: float) -> str:
    """A number of bytes as people read it: `1.50 GB`."""
    return f"{size / 1e9:,.2f} GB"


def check_memory(
    config: Config, state: TrainState, devices: Sequence[Any], *, save_replay: bool, num_hosts: int = 1
) -> None:
    """Refuses a run whose state does not fit where it will live.

    A device that tells its limit must hold its part of the state, and the host the copy of the replay that is
    on its way to a checkpoint. Other devices share the host's memory, where XLA copies a replay that is being
    saved. Of what an update needs besides the state only R2D2's sequences and unrolls are counted; on the
    host `_headroom` is left for the rest.

    Args:
      config: the experiment.
      state: its arrays, or their types.
      devices: those of this host that train.
      save_replay: whether checkpoints hold the replay.
      num_hosts: how many have equal parts of the state, but for what lies on every device.

    Raises:
      UserError: naming the setting, the figures, and how many sequences would fit.
    """
    replay = num_bytes(state.learner.replay)
    everywhere = num_bytes(state.learner) - replay
    replay //= num_hosts
    spread = num_bytes((state.actor, state.episodes))
    saved = replay if save_replay else 0
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    available = available_memory()
    host = None if available is None else _usable(available)
    device = host if limit is None else (limit, f"what {devices[0].device_kind} has")
    if device is not None and isinstance(config.agent, R2D2Config):
        num_devices = len(devices) * num_hosts
        spread += _require_room_for_update(config, config.agent, state.learner.replay, num_devices, *device)
    spread //= num_hosts
    if limit is None and host is not None:
        _require_room(config, replay, saved, everywhere * len(devices) + spread, *host)
    elif device is not None:
        other = everywhere + spread // len(devices)
        _require_room(config, replay // len(devices), 0, other, *device)
        if host is not None:
            _require_room(config, 0, saved, 0, *host)


def _headroom(available: int) -> int:
    """Bytes that stay free of `available`.

    Compiling takes some, unrolls and activations do, copies for checkpoints, and whatever else runs: a tenth
    for what grows with the run and 1 GB for what does not, but no more than half, which leaves a small run
    its place on a small machine.
    """
    return min(available // 10 + 10**9, available // 2)


def _usable(available: int) -> tuple[int, str]:
    """What of `available` bytes of the host a run's state may take, and why so many."""
    headroom = _headroom(available)
    why = f"what is free here, {in_gigabytes(available)}, less {in_gigabytes(headroom)} to compile and run"
    return available - headroom, why


def _require_room_for_update(
    config: Config, agent: R2D2Config, replay: Any, num_devices: int, limit: int, whose: str
) -> int:
    """What an update of all devices takes, about: its sequences as networks read them, and the unrolls.

    Networks read float32 numbers, frames stacked, and two of them keep some between forward and backward: by
    XLA's account r2d2_atari's update takes 5.9 GB on the CPU, where this says 6.5.

    Raises:
      UserError: a device's share is larger than `limit`.
    """
    frame_stack, num_envs = config.network.frame_stack, config.env.num_envs
    layout = make_layout(agent, num_slots=num_envs, frame_stack=frame_stack)
    num_rows = num_envs * layout.ring_length
    row, row_in_floats = (
        num_bytes(replay) / num_rows,
        4 * sum(x.size for x in jax.tree.leaves(replay)) / num_rows,
    )
    sequences = row_in_floats * agent.batch_size * (layout.window_length + 1 + layout.context) * frame_stack
    needed = int(6 * sequences + 2 * row * num_envs * (agent.unroll_length + 1))
    if needed > limit * num_devices:
        raise UserError(
            "agent.batch_size",
            expected=f"an update of at most {in_gigabytes(limit)}, {whose}",
            found=f"{agent.batch_size} sequences, with which it takes {in_gigabytes(needed / num_devices)}",
            remedy="lower it, agent.sequence_length or env.num_envs",
        )
    return needed


def _require_room(config: Config, replay: int, copy: int, other: int, limit: int, whose: str) -> None:
    """Refuses what needs more bytes than `limit`: the replay, a copy of it for checkpoints, and all else."""
    needed = replay + copy + other
    if needed <= limit:
        return
    agent, num_envs = config.agent, config.env.num_envs
    expected = f"a run of at most {in_gigabytes(limit)}, {whose}"
    if not isinstance(agent, R2D2Config) or other > limit:
        raise UserError(
            "env.num_envs",
            expected=expected,
            found=f"{in_gigabytes(other)} for {num_envs} environments, the network and an update",
            remedy="lower it, or make the network smaller",
        )
    layout = make_layout(agent, num_slots=num_envs, frame_stack=config.network.frame_stack)
    rows = layout.ring_length * (limit - other) // (replay + copy)
    fitting = layout.starts_within(rows) * num_envs
    remedy = f"use at most {fitting}" if fitting else "lower env.num_envs as well"
    if copy and replay + other <= limit:
        remedy += ", or set checkpoint.replay = false"
    elif not copy and config.checkpoint.replay == "auto":
        remedy += ", with checkpoint.replay = false"
    parts = (
        (replay, f"replay of {agent.replay_capacity} sequences"),
        (copy, "its copy while a checkpoint is saved"),
        (other, "all else"),
    )
    raise UserError(
        "agent.replay_capacity",
        expected=expected,
        found=f"{in_gigabytes(needed)} ("
        + ", ".join(f"{in_gigabytes(size)} {text}" for size, text in parts if size)
        + ")",
        remedy=remedy,
    )


def available_memory(root: pathlib.Path = pathlib.Path("/")) -> int | None:
    """Bytes that this process can still get, on Linux: of the machine, and of every cgroup that it is in.

    Args:
      root: where `proc` and `sys` are.

    Returns:
      The least of them; None where the system does not tell.
    """
    found = [1024 * size for size in _numbers(root / "proc/meminfo", r"^MemAvailable: *(\d+) kB")]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # A container may see its own cgroup at the base, under a path that is the host's.
        own = base / path.strip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(base):
                found += _left_in_cgroup(folder, *names)
    return min(found, default=None)


def _left_in_cgroup(folder: pathlib.Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    for most in _numbers(folder / limit, r"^(\d+)$"):  # "max" is no limit
        for used in _numbers(folder / usage, r"^(\d+)$"):
            cached = sum(_numbers(folder / "memory.stat", rf"^{reclaimable} (\d+)$"))
            yield max(0, most - used + cached)


def _numbers(path: pathlib.Path, pattern: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, _text(path), re.MULTILINE)]


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
