"""A learner's memory and an actor's steps while others flood it. FLOOD_S seconds: 600, or fewer to try it."""

import contextlib
import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from counting_environment import Counting
from flood_clients import KINDS

from zerocopy_seed.certificates import write_credentials
from zerocopy_seed.remote.access import read_actor_credentials
from zerocopy_seed.remote.client import ActorClient

HERE = pathlib.Path(__file__).parent
SECONDS = float(os.environ.get("FLOOD_S", "600"))
WARM_UP_S = min(120.0, 0.4 * SECONDS)
BYTES_PER_MINUTE = 2**20
WITH_TOKEN = ("insiders", "deaf")  # the others must not keep an actor out
JOIN_WITHIN_S = 120.0
NOISE_BYTES = 2**21  # of one reading: threads, and the allocator's pages


@pytest.mark.slow
def test_a_flood_costs_no_memory_and_no_honest_actor_its_steps(tmp_path):
    write_credentials(tmp_path / "credentials", [], days=1)
    directory = str(tmp_path / "credentials")
    with contextlib.ExitStack() as stack:

        def start(script: str, *words: str) -> subprocess.Popen:
            command = [sys.executable, str(HERE / script), *words]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=in_tree()
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        server = start("flood_server.py", directory)
        assert server.stdin and server.stdout
        address = server.stdout.readline().strip()
        credentials = read_actor_credentials(
            address, ca=f"{directory}/ca.pem", token_file=f"{directory}/token"
        )
        client = stack.enter_context(ActorClient(address, Counting().spec, 8, credentials=credentials))
        steps: list[float] = []
        is_over = threading.Event()
        playing = threading.Thread(target=play, args=(client, steps, is_over))
        playing.start()
        stack.callback(playing.join)
        stack.callback(is_over.set)
        floods = {kind: start("flood_clients.py", kind, address, directory) for kind in KINDS}

        began, minutes, resident = time.monotonic(), [], []
        while time.monotonic() - began < SECONDS:
            time.sleep(min(5.0, SECONDS / 20))
            server.stdin.write("\n")
            server.stdin.flush()
            size, num_actors, num_updates = map(int, server.stdout.readline().split())
            minutes.append((time.monotonic() - began) / 60)
            resident.append(size)
            print(
                f"{minutes[-1]:.2f} min: {size / 2**20:.1f} MiB, {num_actors} actors, {num_updates} updates"
            )
            assert playing.is_alive() and server.poll() is None
            assert all(flood.poll() is None for flood in floods.values())
        for kind in WITH_TOKEN:
            floods[kind].kill()
        late = ActorClient(address, Counting().spec, 1, credentials=credentials, reconnect_s=JOIN_WITHIN_S)
        late.close()
        print(f"joined late after {time.monotonic() - began - SECONDS:.1f} s")
        for kind, flood in floods.items():
            flood.kill()
            assert flood.stdout
            rounds = flood.stdout.read().split()
            print(kind, rounds[-1:])
            assert rounds, f"{kind} did nothing"
    warm = np.array(minutes) > WARM_UP_S / 60
    slope, _ = np.polyfit(np.array(minutes)[warm], np.array(resident)[warm], 1)
    span = minutes[-1] - np.array(minutes)[warm][0]
    print(
        f"{slope / 2**20:.2f} MiB a minute; {len(steps)} steps, p99 {np.quantile(steps, 0.99) * 1e3:.0f} ms"
    )
    assert slope * span < BYTES_PER_MINUTE * span + NOISE_BYTES
    assert client.num_reconnects == 0
    assert len(steps) > SECONDS


def play(client: ActorClient, steps: list[float], is_over: threading.Event) -> None:
    """Steps until it is over; seconds of each."""
    simulator = Counting(8)
    timestep = simulator.reset(client.seeds)
    while not is_over.is_set():
        began = time.perf_counter()
        actions = client.step(timestep)
        steps.append(time.perf_counter() - began)
        simulator.send(actions)
        timestep = simulator.recv()[1]


def in_tree() -> dict[str, str]:
    """Environment variables of a process that finds what this one does."""
    path = os.pathsep.join((str(HERE), *sys.path))
    return {**os.environ, "PYTHONPATH": path}
