"""Meeting the other hosts of a run, and how a process ends that they wait for."""

from __future__ import annotations

import concurrent.futures
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable

import jax

from zerocopy_envs.errors import UserError
from zerocopy_seed.loops.ending import end
from zerocopy_seed.loops.several_hosts import require_same_number
from zerocopy_seed.loops.signals import StopRequest
from zerocopy_seed.rendezvous import Hosts, what_was_lost

# In the words of what devices exchange with, or of the service that hosts meet at.
_OF_OTHERS = re.compile("gloo|nccl|coordination|heartbeat|barrier", re.IGNORECASE)

_HEARTBEAT_S = 30  # a host that is silent for so long is lost
_JOIN_S = 600  # to start on all hosts, which may have an image to fetch
_SHUTDOWN_S = 3600  # the first one may be hashing a last checkpoint
_LAST_WORDS_S = 2.0
_SAID_AFTER_S, _SAID_EVERY_S = 10.0, 60.0  # that others are awaited


def run_joined(
    hosts: Hosts, run: Callable[[], int], stop: StopRequest, *, answer: Callable[[BaseException], int | None]
) -> int:
    """`run()` as one of `hosts`; to be called before JAX is used.

    Where it raises, this process ends at once: JAX would wait at its exit for the others, which wait for it.

    Args:
      hosts: where they meet, and which one this is.
      run: gives the exit code.
      stop: ends the process while it waits for the others.
      answer: says what a user did wrong, and gives the exit code; None of what is no user's mistake.
    """
    try:
        if hosts.index == 0:
            _require_free(hosts)
        print(f"host {hosts.index} of {hosts.count}: meeting at {hosts.address}", flush=True)
        _join(hosts, stop)
        require_same_number(hosts.count)
        return run()
    except BaseException as error:
        code = answer(error)
        if code is None:
            from_jax = isinstance(error, (jax.errors.JaxRuntimeError, ValueError))
            if from_jax and _OF_OTHERS.search(str(error)):
                print(f"{error}\n{what_was_lost(hosts)}", file=sys.stderr)
            else:
                traceback.print_exc()
            code = 1
        elif hosts.index == 0:
            time.sleep(_LAST_WORDS_S)  # all are aborted as it goes, and the others have the same to say
    end(code)


def _join(hosts: Hosts, stop: StopRequest) -> None:
    # Read as the first device is made, which is as soon as hosts speak: `act_synchronously` comes too late.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_enable_preemption_service", False)  # it would hear SIGTERM in our place
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # signals are heard meanwhile
        joined = pool.submit(
            jax.distributed.initialize,
            hosts.address,
            hosts.count,
            hosts.index,
            cluster_detection_method="deactivate",  # else Slurm's says one device for each process
            initialization_timeout=_JOIN_S,
            heartbeat_timeout_seconds=_HEARTBEAT_S,
            shutdown_timeout_seconds=_SHUTDOWN_S,
        )
        said_at = time.monotonic() - _SAID_EVERY_S + _SAID_AFTER_S
        while True:
            if time.monotonic() - said_at > _SAID_EVERY_S:
                said_at = time.monotonic()
                print(f"waiting for all {hosts.count} hosts, {_JOIN_S} s at most", flush=True)
            try:
                return joined.result(timeout=0.1)
            except TimeoutError:
                if stop:
                    print("stopped before all hosts had met; nothing was written", flush=True)
                    end(0)


def _require_free(hosts: Hosts) -> None:
    """Refuses a port on which the first host cannot listen: the others would wait for it in vain."""
    port = int(hosts.address.rpartition(":")[2])
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(
                f"--hosts {hosts.address}",
                expected="a port that the first host can listen on",
                found=error.strerror or str(error),
            ) from error
