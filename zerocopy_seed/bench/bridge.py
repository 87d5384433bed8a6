"""How much of bare gRPC's rate is left to messages through the bridge, and of ALE's to its environments."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zerocopy_seed.bench.bridge_atari import compare_with_ale
from zerocopy_seed.bench.bridge_client import ClientProcess, Load, Window, send_all
from zerocopy_seed.bench.bridge_server import Crossings, serve
from zerocopy_seed.bench.bridge_streams import add_streams, stop_one
from zerocopy_seed.bench.command import print_json, require_no_choice
from zerocopy_seed.config import Config
from zerocopy_seed.loops.serving import act_synchronously

FRAMES = Load((84, 84), "uint8", rows=64, in_flight=2)  # 451 KB
FEW_FRAMES = FRAMES._replace(rows=4)  # 28 KB
FLOATS = Load((4,), "float32", rows=256, in_flight=2)

COMPARISONS = (
    ("451_kb_1_actor", FRAMES, 1),
    ("451_kb_4_actors", FRAMES, 4),
    ("28_kb_1_actor", FEW_FRAMES, 1),
    ("28_kb_4_actors", FEW_FRAMES, 4),
    ("256_environments_4_actors", FLOATS, 4),
)
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
    with served as (bridge, echo, _, engine), contextlib.ExitStack() as stack:
        clients = [ClientProcess(load, bridge, echo) for _ in range(num_actors)]
        for client in clients:
            stack.enter_context(client)
        windows: dict[str, list[Window]] = {"bridge": [], "echo": [], "copying": []}
        for target in ("bridge", "echo"):
            send_all(clients, target, window_s)  # caches and TCP windows grow
        for _ in range(num_pairs):
            for name, found in windows.items():
                engine.copies = name == "copying"
                found.append(send_all(clients, "echo" if name == "echo" else "bridge", window_s))
        crossings = Crossings(engine)
        send_all(clients, "bridge", 0.2 * window_s)
    return {
        "actors": num_actors,
        "environments_per_message": load.rows,
        **ratios(windows["bridge"], windows["echo"]),
        "ratio_while_copying": rate_ratio(windows["copying"], windows["echo"]),
        "bytes_up_per_byte": crossings.gone_up / crossings.arrived,
        "env_steps_per_s": load.rows * _median([window.rate for window in windows["bridge"]]),
    }


def rate_ratio(ours: Sequence[Window], bare: Sequence[Window]) -> float:
    """Of messages per second; the median over pairs of windows."""
    return _median([our.rate / other.rate for our, other in zip(ours, bare, strict=True)])


def ratios(bridge: Sequence[Window], echo: Sequence[Window]) -> dict[str, float]:
    """Medians over pairs of windows."""

    def ratio(figure: Callable[[Window], float]) -> float:
        return _median([figure(ours) / figure(bare) for ours, bare in zip(bridge, echo, strict=True)])

    # On crowded cores the CPU time says more than the clock.
    figures = {
        "ratio_to_grpc": rate_ratio(bridge, echo),
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

    def announce(what: str) -> None:
        say(f"{time.monotonic() - began:4.0f} s  {what}")

    announce("64 streams one by one, 500 idle ones")  # first, while memory is as it was
    streams = add_streams(window_s=window_s)
    comparisons = {}
    for name, load, num_actors in COMPARISONS:
        announce(f"beside bare gRPC: {name.replace('_', ' ')}")
        comparisons[name] = compare(load, num_actors, num_pairs=num_pairs, window_s=window_s)
    announce("beside ALE: Pong")
    ale = compare_with_ale(num_pairs=num_pairs, window_s=2 * window_s)
    announce("3 actors, one of them stopped")
    stopped = stop_one(num_pairs=num_pairs, window_s=window_s)
    return {
        "ratio_to_grpc": comparisons["451_kb_1_actor"]["ratio_to_grpc"],
        "ratio_to_ale": ale["ratio_to_ale"],
        "env_steps_per_s": comparisons["256_environments_4_actors"]["env_steps_per_s"],
        "bytes_up_per_byte": max(figures["bytes_up_per_byte"] for figures in comparisons.values()),
        "grpc": comparisons,
        "ale": ale,
        "streams": streams,
        "stopped_actor": stopped,
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
            f"{name.replace('_', ' ')}: {figures['bridge_messages_per_s']:.0f} messages/s, "
            f"{figures['ratio_to_grpc']:.3f} of bare gRPC's, {figures['ratio_while_copying']:.3f} while a "
            f"learner copies unrolls; p99 {figures['bridge_p99_ms']:.2f} ms, "
            f"{figures['p99_ratio']:.2f} of its; {figures['env_steps_per_s']:,.0f} env_steps/s; "
            f"{figures['bytes_up_per_byte']:.3f} bytes go up for one"
        )
    ale, streams, stopped = result["ale"], result["streams"], result["stopped_actor"]
    print(
        f"Pong, {ale['environments']} environments: {ale['bridge_env_steps_per_s']:.0f} env_steps/s, "
        f"{ale['ratio_to_ale']:.3f} of ALE's alone"
    )
    print(
        f"{streams['streams']} streams: {streams['programs_compiled']} programs compiled; "
        f"the first's p50 {streams['first_p50_ms_alone']:.2f} ms alone, "
        f"{streams['first_p50_ms_joining']:.2f} as they join, {streams['first_p50_ms_beside']:.2f} beside; "
        f"{streams['kb_per_idle_stream']:.0f} KB an idle one"
    )
    print(
        f"one of 3 actors stopped: p99 of the others {stopped['stopped_p99_ms']:.2f} ms, "
        f"{stopped['p99_ratio']:.2f} of what it was"
    )
