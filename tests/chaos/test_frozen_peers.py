"""Peers that are frozen, or behind a network that drops packets, are noticed within 20 s and come back."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid

import pytest
from counting_learner import COUNTING
from counting_learner import __file__ as LEARNER
from processes import Process, wait_for

WITHIN_S = 20.0
SLOTS = 4
pytestmark = pytest.mark.slow  # to notice takes some 15 s


class Pair:
    """A learner and an actor in processes of their own, and how long what follows takes each of them."""

    def __init__(self, tmp_path, prefix=()):
        python = (*prefix, sys.executable)
        self.learner = Process(LEARNER, "127.0.0.1:0", SLOTS, program=python, log=tmp_path / "learner")
        self.learner.wait_to_say("listens at")
        address = re.findall(r"listens at (\S+)", self.learner.said)[0]
        self.actor = Process(
            "actor", address, "--env", COUNTING, "--num-envs", SLOTS,
            program=(*python, "-m", "zerocopy_seed.cli"), log=tmp_path / "actor",
        )  # fmt: skip
        self.learner.wait_to_say("free 0 taken [1-9]")

    def __enter__(self):
        return self

    def __exit__(self, *arguments):
        for process in (self.actor, self.learner):
            process.send_signal(signal.SIGCONT)
            process.__exit__(*arguments)

    def num_freed(self):
        return len(re.findall(f"free {SLOTS} ", self.learner.said))

    def learner_notices(self, before):
        """Seconds until its slots are free."""
        return wait_for(lambda: self.num_freed() > before, WITHIN_S + 5, self.learner)

    def actor_notices(self):
        return self.actor.wait_to_say("trying again", WITHIN_S + 5)

    def goes_on(self):
        """Seconds until unrolls come again."""
        _, taken = self._last()
        return wait_for(lambda: self._last()[0] == 0 and self._last()[1] > taken, 120, self.learner)

    def _last(self):
        *_, (free, taken) = re.findall(r"free (\d+) taken (\d+)", self.learner.said)
        return int(free), int(taken)


def test_a_frozen_actor(tmp_path):
    with Pair(tmp_path) as pair:
        before = pair.num_freed()
        pair.actor.send_signal(signal.SIGSTOP)
        noticed = pair.learner_notices(before)
        pair.actor.send_signal(signal.SIGCONT)
        back = pair.goes_on()
    print(f"frozen actor: noticed after {noticed:.1f} s, back after {back:.1f} s")
    assert noticed < WITHIN_S


def test_a_frozen_learner(tmp_path):
    with Pair(tmp_path) as pair:
        pair.learner.send_signal(signal.SIGSTOP)
        noticed = pair.actor_notices()
        pair.learner.send_signal(signal.SIGCONT)
        back = pair.goes_on()
    print(f"frozen learner: noticed after {noticed:.1f} s, back after {back:.1f} s")
    assert noticed < WITHIN_S


@pytest.fixture
def namespace():
    """A network of its own, with a loopback."""
    name = f"zs-{uuid.uuid4().hex[:8]}"
    if os.geteuid() or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("to drop packets takes root, ip and tc")
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        pytest.skip("the kernel gives no network namespaces here")
    subprocess.run(["ip", "netns", "exec", name, "ip", "link", "set", "lo", "up"], check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


def test_a_network_that_drops_all_packets(tmp_path, namespace):
    inside = ("ip", "netns", "exec", namespace)

    def drop(verb):
        # a bucket of one byte, too small for any packet: kernels have it where they lack netem
        bucket = ["tbf", "rate", "8bit", "burst", "1", "latency", "1ms"] if verb == "add" else []
        command = [*inside, "tc", "qdisc", verb, "dev", "lo", "root", *bucket]
        return subprocess.run(command, capture_output=True, text=True)

    with Pair(tmp_path, inside) as pair:
        before, began = pair.num_freed(), time.monotonic()
        if (tried := drop("add")).returncode:
            pytest.skip(f"the kernel cannot drop packets here: {tried.stderr.strip()}")
        noticed = pair.actor_notices()
        pair.learner_notices(before)
        both = time.monotonic() - began
        assert drop("del").returncode == 0
        back = pair.goes_on()
    print(f"dropped packets: actor {noticed:.1f} s, both {both:.1f} s, back after {back:.1f} s")
    assert both < WITHIN_S
