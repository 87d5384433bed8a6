"""A run's directory at the start: whether it may be used, and its configuration in it."""

from __future__ import annotations

import json
import pathlib
import secrets

from zerocopy_envs.errors import UserError
from zerocopy_seed import hosts
from zerocopy_seed.config import Config
from zerocopy_seed.config_file import RUN_CONFIG, dump_config, load_run_config, refuse_changed_mathematics
from zerocopy_seed.files import replace_text

_RUN_ID = "run_id"


def check_run_dir(config: Config, run_dir: pathlib.Path, resume: bool) -> None:
    """Refuses a directory that holds a run, or with `resume` none or one of other mathematics.

    Raises:
      UserError: naming the directory, or the setting that differs.
    """
    holds_run = (run_dir / RUN_CONFIG).exists()
    if holds_run and not resume:
        raise UserError(
            f"--run-dir {run_dir}",
            expected="a new directory",
            found="one that holds a run",
            remedy="add --resume to go on with it, or choose another",
        )
    if resume and not holds_run:
        raise UserError(f"--run-dir {run_dir}", expected="a run to resume", found=f"no {RUN_CONFIG} there")
    if resume:
        refuse_changed_mathematics(load_run_config(run_dir), config)


def make_run_dir(run_dir: pathlib.Path) -> None:
    """Makes it if it is not there.

    Raises:
      UserError: it cannot be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(run_dir, error) from error


def run_identity(run_dir: pathlib.Path) -> str:
    """The run's own name, which every start of it goes by: made once, and kept in its directory.

    Raises:
      UserError: it cannot be written.
    """
    path = run_dir / _RUN_ID
    try:
        if not hosts.is_first():
            return path.read_text(encoding="utf-8").strip()
        if path.exists() and (found := path.read_text(encoding="utf-8").strip()):
            return found
        made = _of_bridge(run_dir) or secrets.token_hex(8)
        replace_text(path, f"{made}\n")
    except (OSError, ValueError) as error:
        raise _not_writable(run_dir, error) from error
    return made


def _of_bridge(run_dir: pathlib.Path) -> str:
    """The identity that a run with actors kept elsewhere; "" of another."""
    try:
        return str(json.loads((run_dir / "bridge.json").read_text(encoding="utf-8"))["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def write_config(config: Config, run_dir: pathlib.Path) -> None:
    """Atomically: a kill while a run is resumed must not cost its configuration.

    Raises:
      UserError: it cannot be written.
    """
    try:
        replace_text(run_dir / RUN_CONFIG, dump_config(config))
    except OSError as error:
        raise _not_writable(run_dir, error) from error


def _not_writable(run_dir: pathlib.Path, error: OSError | ValueError) -> UserError:
    return UserError(
        f"--run-dir {run_dir}",
        expected="a directory that can be made or written",
        found=getattr(error, "strerror", None) or str(error),
        remedy="choose another, or make it writable",
    )
