import hashlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from zerocopy_seed.loops.signals import hearing_signals


def test_signals_are_heard_while_no_python_runs():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(time.monotonic()))
    sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))

    def no_python():
        sender.start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 500_000)
        return time.monotonic()

    try:
        began, ended = time.monotonic(), hearing_signals(no_python)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert heard[0] - began < (ended - began) / 2


def test_what_goes_wrong_there_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        hearing_signals(lambda: 1 // 0)


ONCE = """
import time
from zerocopy_seed.loops.signals import ending_at_once, hearing_signals
with ending_at_once("no result"):
    print("ready", flush=True)
    hearing_signals(lambda: time.sleep(60))
"""
TWICE = """
import time
from zerocopy_seed.loops.signals import StopRequest
with StopRequest() as stop:
    print("ready", flush=True)
    while not stop:
        time.sleep(0.01)
    print(stop.signal_name, flush=True)
    time.sleep(60)
"""


def start(code):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_has_nothing_to_save_ends_at_the_first_signal(number):
    with start(ONCE) as process:
        process.send_signal(number)
        assert process.communicate(timeout=20)[1] == f"\n{signal.Signals(number).name}: no result\n"
        assert process.returncode == 0


def test_what_has_is_asked_by_the_first_and_ended_by_the_second():
    with start(TWICE) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout and process.stdout.readline() == "SIGINT\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 128 + signal.SIGTERM
