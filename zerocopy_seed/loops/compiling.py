"""Compiling what a run needs, with signals heard meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

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
