"""How much of bare gRPC's rate is left when messages go through the bridge, and of ALE's when it steps for it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zerocopy_seed.bench.bridge_client import ClientProcess, Load, Window, send_all
from zerocopy_seed.bench.bridge_server import serve
from zerocopy_seed.bench.command import print_json, require_no_choice
from zerocopy_seed.config import Config
from zerocopy_seed.loops.bridge import act_synchronously

FRAMES = Load((84, 84), "uint8", rows=64, in_flight=2)  # 451 KB
FEW_FRAMES = FRAMES._replace(rows=4)  # 28 KB
FLOATS = Load((4,), "float32", rows=256, in_flight=2)

_UNROLL_LENGTH = 20
_MAX_BATCH = 256


def compare(load: Load, num_actors: int, *, num_pairs: int, window_s: float) -> dict[str, Any]:
    """The bridge beside a bare echo of the same bytes, for the same client processes, turn by turn.

    Args:
      load: of each actor.
      num_actors: how many.
      num_pairs: of windows.
      window_s: seconds of one.
    """
    served = serve(
        load.spec,
        num_slots=load.num_envs * num_actors,
        max_batch=max(_MAX_BATCH, load.num_envs),
        unroll_length=_UNROLL_LENGTH,
        echo_rows=load.rows,
    )
    with served as (bridge, echo, _), contextlib.ExitStack() as stack:
        clients = [ClientProcess(load, bridge, echo) for _ in range(num_actors)]
        for client in clients:
            stack.enter_context(client)
        windows: dict[str, list[Window]] = {"bridge": [], "echo": []}
        for target in windows:
            send_all(clients, target, window_s)  # caches and TCP windows grow
        for _ in range(num_pairs):
            for target, found in windows.items():
                found.append(send_all(clients, target, window_s))
    return {
        "actors": num_actors,
        "environments_per_message": load.rows,
        **_ratios(windows["bridge"], windows["echo"]),
        "env_steps_per_s": load.rows * _median([window.rate for window in windows["bridge"]]),
    }


def _ratios(bridge: Sequence[Window], echo: Sequence[Window]) -> dict[str, float]:
    """Medians over pairs of windows."""

    def ratio(figure: Callable[[Window], float]) -> float:
        return _median([figure(ours) / figure(bare) for ours, bare in zip(bridge, echo, strict=True)])

    # On crowded cores the CPU time says more than the clock.
    figures = {
        "ratio_to_grpc": ratio(lambda window: window.rate),
        "cpu_ratio": ratio(lambda window: 1 / window.cpu_s),
    }
    for percent in (50, 99):
        figures[f"p{percent}_ratio"] = ratio(lambda window, p=percent: _latency(window, p))
    for name, windows in (("bridge", bridge), ("echo", echo)):
        figures[f"{name}_messages_per_s"] = _median([window.rate for window in windows])
        figures[f"{name}_cpu_us"] = 1e6 * _median([window.cpu_s for window in windows])
        for percent in (50, 99):
            latencies = [_latency(window, percent) for window in windows]
            figures[f"{name}_p{percent}_ms"] = 1e3 * _median(latencies)
    return figures


def _latency(window: Window, percent: float) -> float:
    return float(np.percentile(window.latencies, percent))


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def measure(
    *, num_pairs: int = 5, window_s: float = 1.0, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """All figures; see the module's parts.

    Args:
      num_pairs: of windows, of each comparison.
      window_s: seconds of one window.
      say: takes lines about progress.
    """
    act_synchronously()
    began = time.monotonic()
    comparisons = {}
    for name, load, num_actors in (
        ("451_kb_1_actor", FRAMES, 1),
        ("451_kb_4_actors", FRAMES, 4),
        ("28_kb_1_actor", FEW_FRAMES, 1),
        ("28_kb_4_actors", FEW_FRAMES, 4),
        ("256_environments_4_actors", FLOATS, 4),
    ):
        say(f"{time.monotonic() - began:4.0f} s  {name}")
        comparisons[name] = compare(load, num_actors, num_pairs=num_pairs, window_s=window_s)
    return {
        "ratio_to_grpc": comparisons["451_kb_1_actor"]["ratio_to_grpc"],
        "grpc": comparisons,
    }


def run(configs: Sequence[Config] = (), *, num_envs: Sequence[int] = (), as_json: bool = False) -> None:
    """Measures on this machine's cores and prints the figures; JSON comes as one object on the last line.

    Args:
      configs: must be empty, since the shapes are fixed.
      num_envs: likewise.
      as_json: print only the JSON object.

    Raises:
      UserError: for a configuration or numbers of environments.
    """
    require_no_choice("bridge", configs, num_envs)
    result = measure(say=lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print_json("bridge", result)
        return
    for name, figures in result["grpc"].items():
        print(
            f"{name}: {figures['bridge_messages_per_s']:.0f} messages/s of {figures['echo_messages_per_s']:.0f} "
            f"of bare gRPC, ratio {figures['ratio_to_grpc']:.3f}; p99 {figures['bridge_p99_ms']:.2f} ms of "
            f"{figures['echo_p99_ms']:.2f}; {figures['env_steps_per_s']:,.0f} env_steps/s"
        )
