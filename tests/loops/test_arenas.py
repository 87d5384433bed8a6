import os
import subprocess
import sys

import pytest

ARENAS = """
import ctypes, sys, threading
from zerocopy_seed.loops.arenas import share_arenas

if "share" in sys.argv:
    share_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
together = threading.Barrier(16)


def allocate():
    for _ in range(100):
        libc.malloc(ctypes.c_size_t(1000))
    together.wait()


threads = [threading.Thread(target=allocate) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="another C library than glibc")
def test_threads_share_two_arenas():
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}

    def num_arenas(*words):
        command = [sys.executable, "-c", ARENAS, *words]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.count("<heap nr=")

    assert num_arenas("share") <= 2 < num_arenas()
