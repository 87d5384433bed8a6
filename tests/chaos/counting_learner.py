"""A learner that learns nothing, with the counting agent: `python counting_learner.py ADDRESS [NUM_SLOTS]`.

Says where it listens, then `free N taken M` whenever either of them has changed, N of its slots.
"""

import contextlib
import sys
import threading
from typing import Any

import jax
import numpy as np
from remote.counting_agent import PARAMS, make_counting_agent
from remote.counting_environment import Counting

from zerocopy_seed.remote.bridge import RunDescription
from zerocopy_seed.remote.engine import Engine, Round
from zerocopy_seed.remote.server import Server

COUNTING = "counting_environment:Counting"
LENGTH = 3


def make_engine(num_slots: int) -> Engine:
    return Engine(
        make_counting_agent(num_actions=3), Counting().spec, PARAMS, seed=0, num_slots=num_slots,
        unroll_length=LENGTH, max_policy_lag=np.inf, max_batch=256,
    )  # fmt: skip


@contextlib.contextmanager
def serving(engine: Engine, address: str = "127.0.0.1:0", *, step_s: float = 0.0, num_environments: int = 4):
    """A server, and a thread that takes what comes; gives the server and the rounds."""
    taken: list[Round] = []
    is_done = threading.Event()

    def learn() -> None:
        while not is_done.is_set():
            if (found := engine.take(0.02)) is not None:
                # a copy, since the next one is written over it
                taken.append(found._replace(trajectory=jax.tree.map(np.array, found.trajectory)))
                engine.publish(PARAMS, found.slot)

    settings: dict[str, Any] = {"step_s": step_s}
    run = RunDescription("run", COUNTING, settings, Counting().spec, num_environments)
    learner = threading.Thread(target=learn)
    with Server(engine, run, (address,), in_thread=False) as server:
        learner.start()
        try:
            yield server, taken
        finally:
            is_done.set()
            learner.join()


def main(address: str, num_slots: int) -> None:
    engine = make_engine(num_slots)
    with serving(engine, address, step_s=0.01) as (server, taken):
        print(f"listens at {server.addresses[0]}", flush=True)
        said = None
        while True:
            if (now := (engine.num_free, len(taken))) != said:
                print("free {} taken {}".format(*now), flush=True)
                said = now
            threading.Event().wait(0.02)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
