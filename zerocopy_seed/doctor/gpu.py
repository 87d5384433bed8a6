"""NVIDIA's driver against what JAX's plugins need. Imports no JAX."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

from zerocopy_seed.doctor.finding import Finding
from zerocopy_seed.doctor.packages import is_older, version_of
from zerocopy_seed.extras import install_command

_LEAST_DRIVERS = {"cuda13": "580", "cuda12": "525"}
"""Of each extra, newest first (docs.jax.dev, installation)."""

_QUERY_S = 20.0  # a driver that has hung answers never
_LEAST_SHM_BYTES = 2**28  # Docker gives 64 MiB unless it is told


def check_gpu() -> Iterator[Finding]:
    """Devices and driver; whether the CUDA extra that is installed can use them, or which one could."""
    installed = [extra for extra in _LEAST_DRIVERS if version_of(f"jax-{extra}-plugin")]
    devices, problem = _query()
    for name, _ in devices:
        yield Finding("device", name)
    if not devices:
        remedy = "install NVIDIA's driver, or in a container pass --gpus all" if installed or problem else ""
        found = problem or "none (no nvidia-smi)"
        if installed:
            found += f", and {installed[0]} is installed"
        yield Finding("device", found, remedy, is_broken=bool(installed or problem))
        return
    driver = devices[0][1]
    fitting = [extra for extra, least in _LEAST_DRIVERS.items() if not is_older(driver, least)]
    if not installed:
        remedy = install_command(fitting[0]) if fitting else f"{_LEAST_DRIVERS['cuda12']} or newer is needed"
        yield Finding("driver", f"{driver}, which JAX does not use: no CUDA extra is installed", remedy)
    for extra in installed:
        if extra in fitting:
            yield Finding("driver", f"{driver}, new enough for {extra} ({_LEAST_DRIVERS[extra]})")
            continue
        remedy = f"update the driver to {_LEAST_DRIVERS[extra]} or newer"
        if fitting:
            remedy += f", or {install_command(fitting[0])}"
        yield Finding("driver", f"{driver}, too old for {extra}", remedy, is_broken=True)
    if len(installed) > 1:
        remedy = f"pip uninstall jax-{installed[1]}-plugin jax-{installed[1]}-pjrt"
        yield Finding("plugins", f"both {' and '.join(installed)}", remedy, is_broken=True)
    if len(devices) > 1 and os.path.isdir("/dev/shm"):
        free = shutil.disk_usage("/dev/shm").free
        remedy = "NCCL needs more for several GPUs: --shm-size 1g of docker run"
        is_little = free < _LEAST_SHM_BYTES
        yield Finding("/dev/shm", f"{free / 2**20:.0f} MiB free", remedy if is_little else "", is_little)


def _query() -> tuple[list[tuple[str, str]], str]:
    """(name, driver) of each device, and why there are none where there should be some."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], ""
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi does not answer ({type(error).__name__})"
    if answer.returncode:
        return [], " ".join((answer.stdout or answer.stderr).split()) or "nvidia-smi fails"
    rows = [line.rpartition(", ") for line in answer.stdout.splitlines() if ", " in line]
    return [(name, driver) for name, _, driver in rows], ""
