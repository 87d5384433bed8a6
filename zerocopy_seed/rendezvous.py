"""Where the processes of one run on several hosts meet, and who explains the end of one. Imports no JAX."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType

from zerocopy_envs.errors import UserError
from zerocopy_seed.remote.addresses import parse_address

SAME_SIGNAL_S = 2.0
"""A second signal within so many seconds is the same one, by another way: schedulers may signal a process and
its parent, which hands it on."""

_FORMS = "auto or ADDRESS:PORT,NUM_HOSTS,INDEX"
_FIRST_PORT, _NUM_PORTS = 61440, 4096  # of which a Slurm job takes one, by its number


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The processes that train one run together, usually one on each host.

    Attributes:
      address: HOST:PORT where the first one waits for the others.
      count: how many there are.
      index: which one this is, from 0.
    """

    address: str
    count: int
    index: int


def parse_hosts(text: str, environment: Mapping[str, str] = os.environ) -> Hosts:
    """Reads `ADDRESS:PORT,NUM_HOSTS,INDEX`, or of `auto` what the environment says.

    That is JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or what `srun` sets.

    Raises:
      UserError: naming what is missing or wrong.
    """
    parts = _from_environment(environment) if text == "auto" else text.split(",")
    if len(parts) != 3:
        raise UserError("--hosts", expected=_FORMS, found=repr(text))
    address, *numbers = parts
    for name, number in zip(("NUM_HOSTS", "INDEX"), numbers, strict=True):
        if not (number.isascii() and number.isdigit()):
            raise UserError(f"--hosts, {name}", expected="digits", found=repr(number))
    count, index = map(int, numbers)
    if count < 1:
        raise UserError("--hosts, NUM_HOSTS", expected="at least 1", found=str(count))
    if not index < count:
        raise UserError("--hosts, INDEX", expected=f"less than NUM_HOSTS, {count}", found=str(index))
    where = parse_address(address)
    if where.path:
        raise UserError("--hosts", expected="HOST:PORT", found=address)
    return Hosts(where.text, count, index)


def _from_environment(environment: Mapping[str, str]) -> list[str]:
    ours = ["JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"]
    slurm = ["SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"]
    if ours[0] not in environment and all(name in environment for name in slurm):
        job, nodes, count, index = (environment[name] for name in slurm)
        # node7 | node7,node9 | node[07-15,20],other3
        first = "".join(re.match(r"([^,\[]*)\[?([^,\-\]]*)", nodes).groups())  # type: ignore[union-attr]
        return [f"{first}:{_FIRST_PORT + int(job) % _NUM_PORTS}", count, index]
    if missing := [name for name in ours if name not in environment]:
        raise UserError(
            "--hosts auto",
            expected=f"{', '.join(ours)}, or a step of Slurm",
            found=f"no {' and no '.join(missing)} in the environment",
        )
    return [environment[name] for name in ours]


def fork_and_wait(hosts: Hosts) -> int | None:
    """None in a child process, which is to go on; in this one, once that has ended, its exit code.

    Where a host is lost JAX aborts the process, and only another one can say then what it means. To be called
    before there are threads. SIGINT and SIGTERM are handed on, and later ones kill: a child that waits for
    other hosts cannot hear them. It does not outlive this process.
    """
    here, elsewhere = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(elsewhere)
        os.setpgid(0, 0)  # Ctrl-C is handed on, and must not be heard twice
        threading.Thread(target=_end_with_parent, args=(here,), daemon=True).start()
        return None
    os.close(here)

    first_at = killed_by = 0

    def hand_on(number: int, _: FrameType | None) -> None:
        nonlocal first_at, killed_by
        now = time.monotonic()
        first_at = first_at or now
        if now - first_at < SAME_SIGNAL_S:
            os.kill(child, number)
        else:
            killed_by = number
            os.kill(child, signal.SIGKILL)

    def stop(number: int, _: FrameType | None) -> None:
        os.kill(child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # until somebody says SIGCONT
        os.kill(child, signal.SIGCONT)

    handlers = {signal.SIGINT: hand_on, signal.SIGTERM: hand_on, signal.SIGTSTP: stop}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(elsewhere)
        for number, handler in previous.items():
            signal.signal(number, handler)
    if killed_by:
        return 128 + killed_by
    if code == -signal.SIGABRT:
        print(what_was_lost(hosts), file=sys.stderr, flush=True)
        return 1
    if code < 0:
        name = signal.Signals(-code).name
        print(f"host {hosts.index} of {hosts.count}: ended by {name}", file=sys.stderr, flush=True)
        return 128 - code
    return code


def what_was_lost(hosts: Hosts) -> str:
    """What to say where a host no longer answers."""
    return (
        f"host {hosts.index} of {hosts.count}: another host was lost, never came to {hosts.address}, or came "
        "as another of the same INDEX (unless something else is said above), and the run ends on all; "
        "start it again on all with --resume, which goes on from the newest checkpoint, if there is one"
    )


def _end_with_parent(pipe: int) -> None:
    os.read(pipe, 1)  # nothing is written: it returns when the parent is gone
    os._exit(1)
