"""Compiling what a run needs, with signals heard meanwhile, and the devices that it runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from zerocopy_envs.errors import UserError
from zerocopy_seed.loops.on_device import DATA_AXIS
from zerocopy_seed.loops.signals import hearing_signals


def compile_once(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
    """Compiles what runs a single time; on the CPU optimising it would take longer than running it.

    Args:
      function: what is compiled.
      arguments: as it will be called.
      options: of `jax.jit`.
    """
    compiler_options: Any = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    lowered = jax.jit(function, **options).lower(*arguments)
    return hearing_signals(lambda: lowered.compile(compiler_options=compiler_options))


def make_mesh(num_devices: int) -> Mesh | None:
    """The first `num_devices`; None for one.

    Raises:
      UserError: there are not so many.
    """
    available = jax.device_count()
    if num_devices > available:
        raise UserError(
            "devices.num_devices",
            expected=f"at most {available}, the {jax.default_backend()} devices here",
            found=str(num_devices),
        )
    return Mesh(np.array(jax.devices()[:num_devices]), (DATA_AXIS,)) if num_devices > 1 else None
