"""Checks of the settings that a user gives an environment. Imports no JAX."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from zerocopy_envs.errors import UserError, did_you_mean, known

REQUIRED = inspect.Parameter.empty
"""Stands for the default of a setting that has none."""


def signature_settings(factory: Callable[..., Any]) -> dict[str, Any] | None:
    """Names and defaults that `factory` takes as keywords, or None if it takes any or does not say."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some built-in types have no signature
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p.default for p in parameters if p.kind in by_keyword}


def check_settings(environment: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuses settings that `defaults` does not name, or whose kind differs from the default's.

    Args:
      environment: its name, for the message.
      settings: what the user wrote.
      defaults: every setting there is; None as a default accepts anything, `REQUIRED` must be given.

    Raises:
      UserError: naming the setting, what was expected and the nearest right name.
    """
    for name, value in settings.items():
        if name not in defaults:
            raise UserError(
                f"{environment}: setting {name!r}",
                expected="a setting of this environment",
                remedy=did_you_mean(name, defaults) or known(defaults),
            )
        kind = _kind(defaults[name])
        if kind and not _is_of_kind(value, kind):
            raise UserError(f"{environment}: setting {name!r}", expected=f"a {kind}", found=repr(value))
    for name, default in defaults.items():
        if default is REQUIRED and name not in settings:
            raise UserError(f"{environment}: setting {name!r}", expected="a value: it has no default")


def _kind(default: Any) -> str:
    """The kind of values that may replace `default`; empty if any may."""
    if default is None or default is REQUIRED:
        return ""
    for kind, types in (("bool", bool), ("int", int), ("float", float), ("string", str)):
        if isinstance(default, types):
            return kind
    return "list" if hasattr(default, "__len__") and not isinstance(default, Mapping) else ""


def _is_of_kind(value: Any, kind: str) -> bool:
    if kind == "list":
        return hasattr(value, "__len__") and not isinstance(value, str | Mapping)
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, {"bool": bool, "int": int, "float": int | float, "string": str}[kind])
