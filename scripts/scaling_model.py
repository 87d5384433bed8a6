"""A model of throughput: arithmetic alone, on what scaling_inputs.py counts and measures.

docs/scaling.md has its equations and where its constants are from. Rates are env_steps per second.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class Machine:
    """Hosts of eight H100; bytes and operations per second, seconds. Sources are in docs/scaling.md."""

    gpus_per_host: int = 8
    product_rate: float = 494.7e12
    product_efficiency: float = 0.1
    memory_rate: float = 3.35e12
    bytes_per_operation: float = 4.0
    kernel_s: float = 2e-6
    gpu_memory: float = 80e9
    nvlink_rate: float = 450e9
    network_rate: float = 8 * 50e9
    link_efficiency: float = 0.8
    base_s: float = 4.4e-6
    nvlink_hop_s: float = 1.2e-6
    network_hop_s: float = 8.5e-6
    actors_network_rate: float = 12.5e9
    pcie_rate: float = 64e9
    loops_per_host: int = 1
    max_batch: int = 256
    message_s: float = 0.0
    row_s: float = 0.0
    actor_step_s: float = 0.0
    disk_rate: float = 1e9
    gpu_hours_per_failure: float = 54 * 24 * 16_384 / 419
    measured: dict[str, Any] = dataclasses.field(default_factory=dict)


class Workload(NamedTuple):
    """What scaling_inputs.py counts of one GPU's share of a configuration; see there."""

    config: str
    num_envs: int
    unroll_length: int
    parameters: int
    learner_bytes: float
    loop_bytes: float
    replay_bytes: float
    observation_bytes: float
    wire_bytes_up: float
    wire_bytes_down: float
    act_products: float
    act_rest: float
    environment_products: float
    environment_rest: float
    learn_products: float
    learn_rest: float
    act_kernels: float
    environment_kernels: float
    learn_kernels: float
    exchanges: Sequence[Sequence[float]]
    exchange_kinds: Sequence[str]


def work_s(m: Machine, products: float, rest: float) -> float:
    """Seconds of arithmetic: products at a share of the peak, all else as fast as memory moves operands."""
    return products / (m.product_rate * m.product_efficiency) + rest * m.bytes_per_operation / m.memory_rate


def all_reduce_s(m: Machine, num_bytes: float, gpus: int) -> float:
    """As NCCL reckons a tree over hosts: a latency, and 2 (n - 1) / n of the bytes over the slowest link."""
    if gpus == 1:
        return 0.0
    hosts = -(-gpus // m.gpus_per_host)
    within = min(gpus, m.gpus_per_host)
    latency = m.base_s + 2 * ((within - 1) * m.nvlink_hop_s + math.log2(hosts) * m.network_hop_s)
    rate = m.nvlink_rate if hosts == 1 else min(m.nvlink_rate, m.network_rate)
    return latency + 2 * (gpus - 1) / gpus * num_bytes / (rate * m.link_efficiency)


class Update(NamedTuple):
    """Seconds of an update on every GPU, by what they go to."""

    playing: float
    learning: float
    launches: float
    exchange: float

    @property
    def seconds(self) -> float:
        """Of all."""
        return sum(self)


def update(w: Workload, m: Machine, gpus: int, envs_per_gpu: float, *, on_device: bool) -> Update:
    """An update of `gpus` that each learn from `envs_per_gpu` unrolls, played there if `on_device`.

    `launches` is what a GPU waits for kernels to start where its arithmetic is shorter than that.
    """
    length = w.unroll_length
    playing = learning = launches = 0.0
    if on_device:
        products, rest = w.act_products + w.environment_products, w.act_rest + w.environment_rest
        playing = length * work_s(m, envs_per_gpu * products, envs_per_gpu * rest)
        kernels = length * (w.act_kernels + w.environment_kernels)
        launches += max(0.0, kernels * m.kernel_s - playing)
    learning = envs_per_gpu * length * work_s(m, w.learn_products, w.learn_rest)
    launches += max(0.0, w.learn_kernels * m.kernel_s - learning)
    exchange = sum(times * all_reduce_s(m, num_bytes, gpus) for times, num_bytes in w.exchanges)
    return Update(playing, learning, launches, exchange)


def act_s(w: Workload, m: Machine, batch: float) -> float:
    """Seconds of a GPU to act upon one row of a batch."""
    return max(w.act_kernels * m.kernel_s / batch, work_s(m, w.act_products, w.act_rest))


def bridge_rates(w: Workload, m: Machine, *, gpus: int, actors: float, envs: int) -> dict[str, float]:
    """What each part of the bridge could carry, all hosts together; the least of them is the rate.

    Args:
      w: the workload; every GPU learns from its `num_envs` unrolls in an update.
      m: the machine. Of the GPUs of one event loop, the first acts for its actors, and learns as the others.
      gpus: that learn.
      actors: processes with a core each, spread over the hosts.
      envs: of an actor, which sends half of them at a time.
    """
    hosts, gpus_per_host = -(-gpus // m.gpus_per_host), min(gpus, m.gpus_per_host)
    loops_per_host = min(m.loops_per_host, gpus_per_host)
    loops, rows = hosts * loops_per_host, max(1, envs // 2)
    learning_s = update(w, m, gpus, w.num_envs, on_device=False).seconds / (w.num_envs * w.unroll_length)
    gpu_s = act_s(w, m, min(m.max_batch, actors / loops * rows)) + learning_s * loops_per_host / gpus_per_host
    return {
        "actors": actors / m.actor_step_s,
        "event loops": loops * rows / (m.message_s + rows * m.row_s),
        "network": hosts * m.actors_network_rate * m.link_efficiency / w.wire_bytes_up,
        "PCIe": loops * m.pcie_rate * m.link_efficiency / w.observation_bytes,
        "GPUs": loops / gpu_s,
    }


def limit(rates: dict[str, float]) -> tuple[str, float]:
    """The part that carries least, and what it carries."""
    return min(rates.items(), key=lambda item: item[1])


def lock_step_slowdown(actors: float, length: int, variation: float) -> float:
    """Of waiting for the last of `actors`, whose steps vary by `variation`, deviation over mean.

    The largest of n normal numbers lies about sqrt(2 ln n) deviations above their mean.
    """
    return 1 + variation / math.sqrt(length) * math.sqrt(2 * math.log(actors))


def sequences_that_fit(w: Workload, m: Machine, capacity: int, update_bytes: float) -> int:
    """Of a replay in one GPU's memory, of which a tenth stays free; `w` was counted with `capacity`."""
    return int((0.9 * m.gpu_memory - w.learner_bytes - update_bytes) / (w.replay_bytes / capacity))


def lost_share(m: Machine, gpus: int, *, every_s: float, save_s: float, restart_s: float) -> float:
    """Share of the time that failures and checkpoints cost, if one GPU's failure ends the job."""
    mean_s = 3600 * m.gpu_hours_per_failure / gpus
    return (every_s / 2 + restart_s) / mean_s + save_s / every_s


def read(path: pathlib.Path) -> tuple[dict[str, Workload], Machine]:
    """The workloads, and the machine with what was measured."""
    found = json.loads(path.read_text())
    measured = found["measured"]
    rows, loop_s = ([row[name] for row in measured["bridge"]] for name in ("rows", "loop_s"))
    row_s, message_s = np.polyfit(rows, loop_s, 1, w=1 / np.array(loop_s))  # the least relative errors
    actor_step_s = measured["actor"]["actor_cpu_s"]
    machine = Machine(
        message_s=float(message_s), row_s=float(row_s), actor_step_s=actor_step_s, measured=measured
    )
    return {name: Workload(**counts) for name, counts in found["counted"].items()}, machine


def on_device_rate(w: Workload, m: Machine, gpus: int, envs_per_gpu: float) -> tuple[float, Update]:
    """Rate of all GPUs, and where an update's time goes."""
    spent = update(w, m, gpus, envs_per_gpu, on_device=True)
    return gpus * envs_per_gpu * w.unroll_length / spent.seconds, spent
