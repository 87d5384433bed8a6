"""What a run asks of its hosts before it begins: one configuration, one directory, what several can do."""

from __future__ import annotations

import importlib.metadata
import math
import pathlib
from typing import Any

import jax

from zerocopy_envs.errors import UserError
from zerocopy_seed import hosts
from zerocopy_seed.config import Config
from zerocopy_seed.config_file import flatten
from zerocopy_seed.config_sources import is_mixed


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
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    devices = {"devices of a host": f"{jax.local_device_count()} {jax.default_backend()}"}
    mine = {f"--{name.replace('_', '-')}": str(value) for name, value in words.items()}
    mine |= versions | devices | flatten(config)
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


def refuse_on_hosts(config: Config, *, profile: bool) -> None:
    """Refuses on several hosts what only one can do.

    Raises:
      UserError: naming it.
    """
    if hosts.count() == 1:
        return
    found = {
        "--profile": profile,
        "evaluation.every_env_steps": config.evaluation.every_env_steps < math.inf,
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
    """Refuses a directory that the first host has made and this one does not see.

    Raises:
      UserError: naming it.
    """
    if not run_dir.is_dir():
        raise UserError(
            f"--run-dir {run_dir}",
            expected="a directory on a file system that all hosts share",
            found=f"none on host {hosts.index()}",
        )
