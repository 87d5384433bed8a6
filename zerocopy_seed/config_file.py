"""Reads and writes configuration files. Imports no JAX."""

from __future__ import annotations

import dataclasses
import pathlib
import tomllib
from collections.abc import Sequence
from typing import Any

import tomli_w

from zerocopy_envs.errors import UserError, did_you_mean
from zerocopy_seed.config import Config
from zerocopy_seed.config_checks import validate
from zerocopy_seed.config_flags import lay_over, read_flags
from zerocopy_seed.config_tables import structure

RUN_CONFIG = "config.toml"
"""The file's name in a run directory."""

# Tables and keys that a resume may change, since they do not alter the run's mathematics.
_FREE_ON_RESUME = (
    "total_env_steps",
    "checkpoint",
    "metrics",
    "devices",
    "bridge",
    "record",
    "agent.eval_epsilon",
    "agent.eval_greedy",
)


def load_config(path: str | pathlib.Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a TOML file, with flags laid over it, checked.

    Args:
      path: the file.
      overrides: flags and their values, as on the command line: `["--agent.learning-rate", "1e-3"]`.

    Raises:
      UserError: the file cannot be read; an unknown or missing key, a wrong type, a value out of range, or
        counts that do not divide each other. One line that names the key.
    """
    path = pathlib.Path(path)
    config = structure(Config, lay_over(_read(path), read_flags(overrides)), "", str(path))
    validate(config)
    return config


def load_run_config(run_dir: str | pathlib.Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration that a run was made with; otherwise like `load_config`."""
    path = pathlib.Path(run_dir) / RUN_CONFIG
    if not path.is_file():
        raise UserError(str(run_dir), expected="a run directory", found=f"no {RUN_CONFIG} there")
    saved = load_config(path)
    # Another agent has other keys, and each in the file would be refused, so its name comes first.
    for flag in read_flags(overrides):
        if flag.name == "--agent.name" and flag.words != (saved.agent.name,):
            raise _changed("agent.name", saved.agent.name, " ".join(flag.words))
    return load_config(path, overrides) if overrides else saved


def dump_config(config: Config) -> str:
    """TOML text that `load_config` reads back as an equal configuration."""
    return tomli_w.dumps(dataclasses.asdict(config))


def flatten(config: Config) -> dict[str, Any]:
    """Every setting by its path: `agent.learning_rate`."""
    return _flatten(dataclasses.asdict(config), "")


def resume_differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """(path, old value, new value) of what would alter the mathematics of a run that is resumed."""
    before, after = flatten(old), flatten(new)
    # another agent has other keys, so that its name comes first
    paths = ("agent.name", *before, *after)
    return [
        (path, before.get(path, "nothing"), after.get(path, "nothing"))
        for path in dict.fromkeys(paths)
        if not {path, path.split(".")[0]} & set(_FREE_ON_RESUME) and before.get(path) != after.get(path)
    ]


def refuse_changed_mathematics(old: Config, new: Config) -> None:
    """Lets a resumed run differ from what it was only where its mathematics stays the same.

    Raises:
      UserError: naming the first key that differs and both values.
    """
    for path, before, after in resume_differences(old, new):
        raise _changed(path, before, after)


def _changed(path: str, before: Any, after: Any) -> UserError:
    return UserError(
        path,
        expected=f"{before!r}, as in the run that is resumed",
        found=repr(after),
        remedy="leave it as it was, or start a new run",
    )


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        siblings = path.parent.glob("*.toml") if path.parent.is_dir() else ()
        near = did_you_mean(path.name, [sibling.name for sibling in siblings])
        raise UserError(
            str(path), expected="a configuration file", found="no such file", remedy=near
        ) from None
    except IsADirectoryError:
        remedy = f"pass {path / RUN_CONFIG}" if (path / RUN_CONFIG).is_file() else ""
        raise UserError(
            str(path), expected="a configuration file", found="a directory", remedy=remedy
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(str(path), expected="a readable TOML file", found=reason) from None


def _flatten(table: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        flat |= _flatten(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return flat
