"""A learner in a process of its own, for those who flood it: `python flood_server.py DIR`, with credentials.

Prints its address, and then a line for each line that it reads: resident bytes, actors, updates.
"""

import pathlib
import sys
import threading

import numpy as np
from counting_agent import PARAMS, make_counting_agent
from counting_environment import Counting

from zerocopy_seed.config import BridgeConfig
from zerocopy_seed.loops.arenas import share_arenas
from zerocopy_seed.remote.access import read_access
from zerocopy_seed.remote.addresses import parse_address
from zerocopy_seed.remote.bridge import RunDescription
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.server import Server


def resident_bytes() -> int:
    """Of this process."""
    fields = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def main(directory: pathlib.Path) -> None:
    """Serves until its input ends."""
    share_arenas()
    bridge = BridgeConfig(
        cert=str(directory / "server.pem"),
        key=str(directory / "server-key.pem"),
        token_file=str(directory / "token"),
        max_streams=32,
        max_envs_per_actor=64,
    )
    spec = Counting().spec
    engine = Engine(
        make_counting_agent(num_actions=3),
        spec,
        PARAMS,
        seed=0,
        num_slots=128,
        unroll_length=3,
        max_policy_lag=np.inf,
        max_batch=64,
    )
    engine.warm_up()
    is_done, num_updates = threading.Event(), 0

    def learn() -> None:
        nonlocal num_updates
        while not is_done.is_set():
            if (found := engine.take(0.02)) is not None:
                engine.publish(PARAMS, found.slot)
                num_updates += 1

    learner = threading.Thread(target=learn)
    access = read_access(bridge, parse_address("127.0.0.1:1"))
    run = RunDescription("run", "counting_environment:Counting", {}, spec, 1)
    with Server(engine, run, ("127.0.0.1:0",), in_thread=False, access=access) as server:
        learner.start()
        print(server.addresses[0], flush=True)
        for _ in sys.stdin:
            engine.figures()  # as a learner's line of metrics does: empties what it gathers
            print(resident_bytes(), server.bridge.num_actors, num_updates, flush=True)
    is_done.set()
    learner.join()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
