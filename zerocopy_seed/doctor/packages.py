"""What is installed, and whether it is new enough. Imports no JAX."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator

from zerocopy_seed.doctor.finding import Finding
from zerocopy_seed.extras import EXTRAS, install_command

_PACKAGES = (
    "zerocopy_seed",
    "numpy",
    "grpcio",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "gymnax",
    "brax",
    "ale-py",
)
_AT_LEAST = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)")


def version_of(package: str) -> str:
    """Of an installed package; "" where it is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_older(version: str, least: str) -> bool:
    """Whether `0.9.1` is older than `0.10`, by their leading numbers."""
    found, wanted = _numbers(version), _numbers(least)
    width = max(len(found), len(wanted))
    return found + [0] * (width - len(found)) < wanted + [0] * (width - len(wanted))


def _numbers(version: str) -> list[int]:
    leading = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return [int(part) for part in leading[0].split(".")] if leading else []


def check_packages() -> Iterator[Finding]:
    """Versions, against what this package declares that it needs, and JAX's parts against each other."""
    least = _declared()
    for package in _PACKAGES:
        version, wanted = version_of(package), least.get(package, "")
        if version and wanted and is_older(version, wanted):
            remedy = f'at least {wanted} is needed: pip install "{package}>={wanted}"'
            yield Finding(package, version, remedy, is_broken=True)
        else:
            yield Finding(package, version or "not installed")
    jaxlib = version_of("jaxlib")
    for plugin in ("jax-cuda12-plugin", "jax-cuda13-plugin"):
        version = version_of(plugin)
        if version and version != jaxlib:
            remedy = f"jaxlib is {jaxlib or 'missing'}: pip install {plugin}=={version_of('jax')}"
            yield Finding(plugin, version, remedy, is_broken=True)


def _declared() -> dict[str, str]:
    """The least version of each package that this one's metadata name, in whatever extra."""
    try:
        requires = importlib.metadata.requires("zerocopy_seed") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return {}
    return {match[1]: match[2] for text in requires if (match := _AT_LEAST.match(text))}


def check_extras() -> Iterator[Finding]:
    """Which are complete; none has to be."""
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            yield Finding(extra, f"missing {', '.join(missing)}", install_command(extra))
        else:
            yield Finding(extra, "present")
