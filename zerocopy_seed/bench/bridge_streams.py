"""What many streams cost, and whether an actor notices those beside it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import jax.monitoring
import numpy as np

from zerocopy_seed.bench.bridge_client import ClientProcess, Load, Window, send_all
from zerocopy_seed.bench.bridge_server import serve

_LOAD = Load((4,), "float32", rows=1, in_flight=1)
_FRAME = Load((84, 84), "uint8", rows=1, in_flight=1)
_UNROLL_LENGTH = 20
_COMPILED = "/jax/core/compile/backend_compile_duration"


def add_streams(*, window_s: float, num_streams: int = 64, num_idle: int = 500) -> dict[str, Any]:
    """An actor's latency alone, while others join one by one, and beside them; what idle ones take.

    Args:
      window_s: seconds of one window.
      num_streams: of the actor and those that join.
      num_idle: that join after that.
    """
    compiled: list[str] = []

    def note(event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILED:
            compiled.append(event)

    served = serve(
        _LOAD.spec, num_slots=num_streams + num_idle + 1, max_batch=64, unroll_length=_UNROLL_LENGTH
    )
    with contextlib.ExitStack() as stack:
        address, _, server, *_ = stack.enter_context(served)
        first, others = (stack.enter_context(ClientProcess(_LOAD, address)) for _ in range(2))
        send_all([first], "bridge", window_s)
        jax.monitoring.register_event_duration_secs_listener(note)
        try:
            alone = [send_all([first], "bridge", window_s) for _ in range(3)]
            others.join(num_streams - 2)
            joining = [send_all([first], "bridge", window_s)]
            others.answer()
            beside = [send_all([first], "bridge", window_s) for _ in range(3)]
        finally:
            jax.monitoring.unregister_event_duration_listener(note)
        assert server.bridge.num_actors == num_streams
        num_bytes = _resident_bytes()
        others.join(num_idle)
        others.answer()
        assert server.bridge.num_actors == num_streams + num_idle
        num_bytes = _resident_bytes() - num_bytes
    figures: dict[str, Any] = {"streams": num_streams, "programs_compiled": len(compiled)}
    for name, windows in (("alone", alone), ("joining", joining), ("beside", beside)):
        # What disturbs a window only adds to it.
        fastest = min(np.median(window.latencies) for window in windows)
        figures[f"first_p50_ms_{name}"] = 1e3 * float(fastest)
    return {**figures, "idle_streams": num_idle, "kb_per_idle_stream": num_bytes / 1024 / num_idle}


def stop_one(*, num_pairs: int, window_s: float) -> dict[str, Any]:
    """Three actors of one environment, one of them stopped every other window: the latencies of the others.

    Args:
      num_pairs: of windows.
      window_s: seconds of one.
    """
    windows: dict[str, list[Window]] = {"going": [], "stopped": []}
    with serve(_FRAME.spec, num_slots=64, max_batch=64, unroll_length=_UNROLL_LENGTH) as served:
        clients = [ClientProcess(_FRAME, served.address) for _ in range(3)]
        with clients[0], clients[1], clients[2] as third:
            now = time.monotonic()
            third.start("bridge", now, now + 2.5 * num_pairs * window_s)
            try:
                for _ in range(num_pairs):
                    for name, number in (("going", signal.SIGCONT), ("stopped", signal.SIGSTOP)):
                        os.kill(third.pid, number)
                        windows[name].append(send_all(clients[:2], "bridge", window_s))
            finally:
                os.kill(third.pid, signal.SIGCONT)
            num_thirds = third.answer()[1]
    p99 = {name: [np.percentile(w.latencies, 99) for w in found] for name, found in windows.items()}
    return {
        "p99_ratio": float(np.median(np.divide(p99["stopped"], p99["going"]))),
        "going_p99_ms": 1e3 * float(np.median(p99["going"])),
        "stopped_p99_ms": 1e3 * float(np.median(p99["stopped"])),
        "env_steps_per_s": float(np.median([window.rate for window in windows["going"]])),
        "third_env_steps": num_thirds,
    }


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
