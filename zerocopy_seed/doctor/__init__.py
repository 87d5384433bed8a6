"""Says what this installation and this machine can do. Imports JAX only once it is known to be there."""

from __future__ import annotations

import importlib.util
import pathlib
import platform
from collections.abc import Iterable

from zerocopy_seed.doctor.finding import Finding
from zerocopy_seed.doctor.gpu import check_gpu
from zerocopy_seed.doctor.machine import check_address, check_disk, check_files, check_roms
from zerocopy_seed.doctor.packages import check_extras, check_packages


def run(address: str, run_dir: pathlib.Path) -> int:
    """Prints what it finds, with a remedy for what is wrong, and runs a tiny computation.

    Args:
      address: that a learner would listen at.
      run_dir: where runs would be written.

    Returns:
      The process's exit code: 0, or 1 if something is broken.

    Raises:
      UserError: a malformed address.
    """
    print(f"Python {platform.python_version()} on {platform.platform()}")
    findings = [*check_packages()]
    _show(findings)
    sections = {
        "Extras": check_extras,
        "GPU": check_gpu,
        "Machine": lambda: (
            check_address(address),
            check_disk(run_dir),
            check_files(),
        ),
        "Environments": check_roms,
    }
    if importlib.util.find_spec("jax") is not None:
        sections["JAX"] = _check_jax
    for title, check in sections.items():
        found = [*check()]
        if found:
            print(title)
            _show(found)
            findings += found
    num_broken = sum(finding.is_broken for finding in findings)
    if num_broken:
        print(f"{num_broken} thing{'s are' if num_broken > 1 else ' is'} broken, marked with !")
    return 1 if num_broken else 0


def _show(findings: Iterable[Finding]) -> None:
    for finding in findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        print(f"{'!' if finding.is_broken else ' '} {finding.subject:<18} {finding.found}{remedy}")


def _check_jax() -> Iterable[Finding]:
    """Whatever is broken in a driver or a plugin is what the user came to see."""
    try:
        import jax
        import jax.numpy as jnp

        from zerocopy_seed.loops.compile_cache import compile_cache_dir

        devices = ", ".join(str(device) for device in jax.devices())
        total = int(jax.jit(lambda x: (x @ x).sum())(jnp.ones((8, 8))))
        if total != 512:
            raise ArithmeticError(f"a product of two 8x8 matrices of ones sums to 512, found {total}")
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return [Finding("computes", f"no: {line}", "see the lines on packages and GPU above", is_broken=True)]
    return [
        Finding("devices", devices),
        Finding("compile cache", str(compile_cache_dir())),
        Finding("computes", "yes"),
    ]
