"""Atari through the bridge beside ALE's own vector environment, on the same cores, turn by turn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

from zerocopy_seed.bench.bridge_server import serve
from zerocopy_seed.loops.local_actors import LocalActors

NUM_ENVS = 32
_PONG = "ale:Pong"
_UNROLL_LENGTH = 20


def compare_with_ale(*, num_pairs: int, window_s: float, num_envs: int = NUM_ENVS) -> dict[str, Any]:
    """Environment steps per second of Pong: an `actor` process and this server, and ALE alone; medians.

    The same number of environments and of ALE's threads. Whoever has not the turn is stopped.

    Args:
      num_pairs: of windows.
      window_s: seconds of one.
      num_envs: environments.
    """
    from zerocopy_envs.ale_suite import make_environment

    num_threads = len(os.sched_getaffinity(0))
    settings = {"repeat_action_probability": 0.0, "num_threads": num_threads}
    spec = make_environment("Pong", num_envs=1, **settings).spec
    alone = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, json.dumps([num_envs, num_threads])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert alone.stdin and alone.stdout
    served = serve(
        spec,
        num_slots=num_envs,
        max_batch=num_envs,
        unroll_length=_UNROLL_LENGTH,
        environment=_PONG,
        settings=settings,
    )

    def say(line: str) -> None:
        raise RuntimeError(line)

    rates: dict[str, list[float]] = {"bridge": [], "ale": []}
    with (
        alone,
        served as (address, _, server, _, copies),
        LocalActors(address, [num_envs], env=_PONG, warn=say) as actors,
    ):
        copies.set()
        (actor,) = actors.pids
        row_bytes = server.bridge.wire.row_bytes
        while server.bridge.num_bytes < 20 * num_envs * row_bytes:
            time.sleep(0.05)
            if failure := actors.check():
                raise RuntimeError(failure)
        for _ in range(num_pairs):
            os.kill(actor, signal.SIGCONT)
            time.sleep(0.1 * window_s)
            num_bytes, began = server.bridge.num_bytes, time.perf_counter()
            time.sleep(window_s)
            seconds = time.perf_counter() - began
            rates["bridge"].append((server.bridge.num_bytes - num_bytes) / row_bytes / seconds)
            os.kill(actor, signal.SIGSTOP)
            alone.stdin.write(f"{window_s}\n")
            rates["ale"].append(float(alone.stdout.readline()))
        os.kill(actor, signal.SIGCONT)
        alone.stdin.close()
    return {
        "environments": num_envs,
        "ale_threads": num_threads,
        "ratio_to_ale": float(np.median(np.divide(rates["bridge"], rates["ale"]))),
        "bridge_env_steps_per_s": float(np.median(rates["bridge"])),
        "ale_env_steps_per_s": float(np.median(rates["ale"])),
    }


def _run_alone(num_envs: int, num_threads: int) -> None:
    """Answers each line, a number of seconds, with the environment steps per second in such a while."""
    from ale_py import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    environment = AtariVectorEnv(
        "pong",
        num_envs,
        num_threads=num_threads,
        stack_num=1,
        frameskip=4,
        repeat_action_probability=0.0,
        reward_clipping=False,
        use_fire_reset=False,
        noop_max=0,
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )
    environment.reset(seed=0)
    actions = np.zeros(num_envs, np.int32)
    for line in sys.stdin:
        num_steps, began = -2, 0.0
        while num_steps <= 0 or time.perf_counter() - began < float(line):
            environment.send(actions)
            environment.recv()
            num_steps += 1
            if num_steps == 0:  # the first two only warm up
                began = time.perf_counter()
        print(num_steps * num_envs / (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    _run_alone(*json.loads(sys.argv[1]))
