"""What a learner takes of its machine: an address, a disk, open files; and an actor: ROMs. Imports no JAX."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import resource
import shutil
from collections.abc import Iterator

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import BridgeConfig
from zerocopy_seed.doctor.finding import Finding
from zerocopy_seed.remote.addresses import parse_address, require_free

_LEAST_FREE_BYTES = 10**9  # some checkpoints with a small replay
_OWN_FILES = 256  # of a learner without actors: JAX, orbax, logs


def check_address(text: str) -> Finding:
    """Whether a learner could listen there.

    Raises:
      UserError: it is none.
    """
    address = parse_address(text, to_listen=True)
    try:
        require_free(address)
    except UserError as error:
        return Finding("address", f"{address.text}: {error.found}", "choose another", is_broken=True)
    note = "" if address.path or address.is_loopback else "needs TLS and a token: `zerocopy-seed certs DIR`"
    return Finding("address", f"{address.text} can be listened on", note)


def check_disk(run_dir: pathlib.Path) -> Finding:
    """Whether runs can be written there, and how much fits."""
    there = run_dir.absolute()
    while not there.exists():
        there = there.parent
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return Finding("disk", f"{there} cannot be written", "pass another --run-dir", is_broken=True)
    free = shutil.disk_usage(there).free
    is_full = free < _LEAST_FREE_BYTES
    remedy = "make room: checkpoints would fail" if is_full else ""
    return Finding("disk", f"{free / 1e9:,.1f} GB free for {run_dir}", remedy, is_full)


def check_files() -> Finding:
    """How many files, of which connections are some, this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Finding("open files", "no limit")
    room, most = (soft - _OWN_FILES) // 2, BridgeConfig.max_streams  # twice as many may connect as may call
    remedy = f"ulimit -n {2 * most + _OWN_FILES}"
    if room <= 0:
        return Finding("open files", f"{soft}", f"a learner needs more than {_OWN_FILES}: {remedy}", True)
    found = f"{soft}, room for {min(room, most):,} actors"
    return Finding("open files", found, f"{remedy} for more" if room < most else "")


def check_roms() -> Iterator[Finding]:
    """Whether Atari's games are where ale-py looks for them, if it is there."""
    if importlib.util.find_spec("ale_py") is None:
        return
    remedy = "pip install --force-reinstall ale-py, which brings them"
    try:
        from ale_py import roms

        names = roms.get_all_rom_ids()
        there = [name for name in names if roms.get_rom_path(name) is not None]
    except Exception as error:  # a package that is half there
        yield Finding("Atari ROMs", f"{type(error).__name__}: {error}", remedy, is_broken=True)
        return
    if "pong" in there:
        yield Finding("Atari ROMs", f"{len(there)} found")
    else:
        yield Finding("Atari ROMs", f"{len(there)} found, not Pong", remedy, is_broken=True)
