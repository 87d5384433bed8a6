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


def check_memory(config: Config, state: TrainState, devices: Sequence[Any], *, save_replay: bool) -> None:
    """Refuses a run whose state does not fit where it will live.

    A device that tells its limit must hold its part of the state, and the host the copy of the replay that is
    on its way to a checkpoint. Other devices share the host's memory, where XLA copies a replay that is being
    saved. Of what a program needs besides its state, only a batch of sequences is counted.

    Args:
      config: the experiment.
      state: its arrays, or their types.
      devices: those that train.
      save_replay: whether checkpoints hold the replay.

    Raises:
      UserError: naming the setting, the figures, and how many sequences would fit.
    """
    replay = num_bytes(state.learner.replay)
    if isinstance(config.agent, R2D2Config):
        _require_room_for_batch(config, config.agent, replay, devices)
    everywhere = num_bytes(state.learner) - replay
    spread = num_bytes((state.actor, state.episodes))
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    available = available_memory()
    saved = replay if save_replay else 0
    if limit is not None:
        share = len(devices)
        other = everywhere + spread // share
        _require_room(config, replay // share, 0, other, limit, f"what {devices[0].device_kind} has")
        if available is not None:
            _require_room(config, 0, saved, 0, available, "what the host has free")
    elif available is not None:
        other = everywhere * len(devices) + spread
        _require_room(config, replay, saved, other, available, "what is free here")


def _require_room_for_batch(config: Config, agent: R2D2Config, replay: int, devices: Sequence[Any]) -> None:
    """Refuses a batch of sequences larger than a device's memory; `replay` is in bytes."""
    limit = (devices[0].memory_stats() or {}).get("bytes_limit", available_memory())
    layout = make_layout(agent, num_slots=config.env.num_envs, frame_stack=config.network.frame_stack)
    row = replay / (config.env.num_envs * layout.ring_length)
    needed = agent.batch_size * (layout.window_length + 1 + layout.context) * row / len(devices)
    if limit is not None and needed > limit:
        raise UserError(
            "agent.batch_size",
            expected=f"sequences of at most {in_gigabytes(limit)}, what there is",
            found=f"{agent.batch_size}, which take {in_gigabytes(needed)}",
            remedy=f"use at most {int(agent.batch_size * limit / needed)}",
        )


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
            found=f"{in_gigabytes(other)} for {num_envs} environments and the network",
            remedy="lower it, or make the network smaller",
        )
    layout = make_layout(agent, num_slots=num_envs, frame_stack=config.network.frame_stack)
    rows = layout.ring_length * (limit - other) // (replay + copy)
    fitting = layout.starts_within(rows) * num_envs
    remedy = f"use at most {fitting}" if fitting else "lower env.num_envs as well"
    if copy and replay + other <= limit:
        remedy += ", or set checkpoint.replay = false"
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
