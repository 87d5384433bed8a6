"""An actor that sleeps five seconds a step slows nobody else."""

import contextlib
import threading
import time

import numpy as np
import pytest
from counting_learner import make_engine, serving
from remote.counting_environment import Counting

from zerocopy_seed.remote.client import ActorClient

SEGMENT_S, NUM_SEGMENTS, NUM_FAST = 6.0, 4, 2


def answer_times(address: str, seconds: float, pauses_s: float = 0.0) -> list[float]:
    """Seconds that each answer took, over so many seconds."""
    simulator, times = Counting(1), []
    with ActorClient(address, simulator.spec, 1) as client:
        timestep, give_up = simulator.reset(client.seeds), time.monotonic() + seconds
        while time.monotonic() < give_up:
            time.sleep(pauses_s)
            began = time.perf_counter()
            action = client.step(timestep)
            times.append(time.perf_counter() - began)
            simulator.send(action)
            timestep = simulator.recv()[1]
    return times


def segment(address: str, with_slow_one: bool) -> list[float]:
    """Of the fast actors."""
    times: list[float] = []
    fast = [
        threading.Thread(target=lambda: times.extend(answer_times(address, SEGMENT_S)))
        for _ in range(NUM_FAST)
    ]
    slow = [threading.Thread(target=answer_times, args=(address, SEGMENT_S, 5.0))] if with_slow_one else []
    for thread in (*slow, *fast):
        thread.start()
    for thread in (*slow, *fast):
        thread.join()
    return times


@pytest.mark.slow
def test_the_others_answer_times_stay_as_they_are():
    alone: list[float] = []
    beside: list[float] = []
    with contextlib.ExitStack() as stack:
        server, _ = stack.enter_context(serving(make_engine(8)))
        segment(server.addresses[0], True)  # what is slow once is over
        for _ in range(NUM_SEGMENTS):  # in turn, since the machine is not always as busy
            alone += segment(server.addresses[0], False)
            beside += segment(server.addresses[0], True)
    p99 = [float(np.quantile(times, 0.99)) for times in (alone, beside)]
    print(f"p99 alone {1e3 * p99[0]:.2f} ms, beside a slow one {1e3 * p99[1]:.2f} ms: {p99[1] / p99[0]:.2f}")
    assert p99[1] <= 1.2 * p99[0]
