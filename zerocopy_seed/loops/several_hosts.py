"""What a run asks of its hosts before it begins: one configuration, one directory, what several can do."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import pathlib
import secrets
import time
from typing import Any

import jax

from zerocopy_envs.errors import UserError
from zerocopy_seed import hosts
from zerocopy_seed.config import Config
from zerocopy_seed.config_file import flatten
from zerocopy_seed.config_sources import is_mixed
from zerocopy_seed.loops.console import complain

_OWN = {"metrics.host", "metrics.port"} | {
    f"bridge.{name}"
    for name in ("address", "cert", "key", "ca", "token_file", "local_actors", "envs_per_actor")
}
"""Settings that may be each host's own."""

_SEEN_S = 30.0  # until what one host has written is there for another, at most


def require_same_number(count: int) -> None:
    """Refuses hosts of which some were told of another number of them, or that have unequal devices.

    Raises:
      UserError: on every host, with both numbers.
    """
    found = [len(jax.local_devices(process_index=host)) for host in range(hosts.count())]
    for host, number in enumerate(found):
        if number != found[0]:  # asked before hosts speak, for which JAX wants them equal
            raise UserError(
                "--hosts",
                expected="as many devices on every host",
                found=f"{found[0]} on host 0 and {number} on host {host}",
            )
    told = hosts.gather([count])[:, 0].tolist()
    for host, number in enumerate(told):
        if number != told[0]:
            raise UserError(
                "--hosts, NUM_HOSTS",
                expected="the same on all hosts",
                found=f"{told[0]} on host 0 and {number} on host {host}",
            )


def require_same_run(config: Config, **words: Any) -> None:
    """Refuses hosts that were not started alike.

    Args:
      config: the experiment.
      words: what else was asked for, by its name on the command line.

    Raises:
      UserError: on every host, naming the first setting that differs, and both values.
    """
    if hosts.count() == 1:
        return
    mine = {f"--{name.replace('_', '-')}": str(value) for name, value in words.items()}
    mine |= {name: _version(name) for name in ("zerocopy_seed", "jax", "jaxlib")}
    mine |= {name: value for name, value in flatten(config).items() if name not in _OWN}
    theirs = hosts.all_as_json(mine)
    first = theirs[0]
    for place, other in enumerate(theirs):
        for name in (*first, *other):
            if first.get(name) != other.get(name):
                raise UserError(
                    name,
                    expected="the same on all hosts",
                    found=f"{first.get(name)!r} on host 0 and {other.get(name)!r} on host {place}",
                )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "(not installed)"


def refuse_on_hosts(config: Config, *, profile: bool) -> None:
    """Refuses on several hosts what only one can do.

    Raises:
      UserError: naming it.
    """
    if hosts.count() == 1:
        return
    found = {
        "--profile": profile and "it",
        "evaluation.every_env_steps": math.isfinite(every := config.evaluation.every_env_steps) and every,
        "record.dir": config.record.dir,
        "source": config.source,
        "sources.actors": is_mixed(config) and config.sources.actors,
        "num_seeds": config.num_seeds > 1 and config.num_seeds,
        "sweep": config.sweep,
        "devices.model": config.devices.model > 1 and config.devices.model,
    }
    for name, value in found.items():
        if value:
            remedy = "`zerocopy-seed evaluate RUN_DIR` beside it" if name.startswith("evaluation") else ""
            raise UserError(name, expected=f"one host, not {hosts.count()}", found=str(value), remedy=remedy)


def require_shared(run_dir: pathlib.Path) -> None:
    """Refuses a directory that is another one on this host than on the first, which has made it.

    Raises:
      UserError: on every host.
    """
    if hosts.count() == 1:
        return
    token, path = secrets.token_hex(8), run_dir / ".hosts"
    if hosts.is_first():
        path.write_text(token)
    token = hosts.of_first_as_json(token)
    hosts.require_all(lambda: _require_token(token, path))
    if hosts.is_first():
        path.unlink()


def _require_token(token: str, path: pathlib.Path) -> None:
    give_up, is_said = time.monotonic() + _SEEN_S, False
    while True:
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # a file system of others may have noted that it is not there
            if path.read_text() == token:
                return
        if time.monotonic() > give_up:
            raise UserError(
                f"--run-dir {path.parent}",
                expected="a directory on a file system that all hosts share",
                found=f"another one on host {hosts.index()}, or none",
            )
        if not is_said and time.monotonic() > give_up - _SEEN_S + 2.0:
            is_said = True
            complain(
                f"{path.parent}: waiting until it is here as host 0 has made it, {_SEEN_S:.0f} s at most"
            )
        time.sleep(0.2)
