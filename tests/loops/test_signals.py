import hashlib
import os
import signal
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
