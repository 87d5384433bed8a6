"""A trace of a few updates, to look at in Perfetto."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from typing import Any

import jax
import numpy as np

from zerocopy_seed.loops.console import complain, say
from zerocopy_seed.loops.on_device import Program

TRACE = "perfetto_trace.json.gz"
_NUM_UPDATES = 2  # a trace has an event for every operation of every step


def with_profile(program: Program, run_dir: pathlib.Path) -> Program:
    """`program`, whose second dispatch is traced to `run_dir/perfetto_trace.json.gz` (https://ui.perfetto.dev).

    The first two are short: one update that is left out, since its caches are cold, and the traced ones.
    """
    calls = 0

    def dispatch(state: Any, window: Any, num_updates: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            return program.dispatch(state, window, np.minimum(num_updates, np.int32(1)))
        if calls > 2:
            return program.dispatch(state, window, num_updates)
        scratch = pathlib.Path(tempfile.mkdtemp(prefix=".profile-", dir=run_dir))
        few = np.minimum(num_updates, np.int32(_NUM_UPDATES))
        jax.profiler.start_trace(scratch, create_perfetto_trace=True)
        try:
            state, window = program.dispatch(state, window, few)
            jax.block_until_ready(state.learner.env_steps)
        finally:
            _keep(scratch, run_dir / TRACE)
        return state, window

    return program._replace(dispatch=dispatch)


def _keep(scratch: pathlib.Path, trace: pathlib.Path) -> None:
    """Ends the trace; that it cannot be written must not end the training."""
    try:
        jax.profiler.stop_trace()
        next(scratch.rglob(TRACE)).replace(trace)
        say(f"profile: {trace}; open it at https://ui.perfetto.dev")
    except (OSError, RuntimeError, StopIteration) as error:
        complain(f"{trace}: no profile: {error or type(error).__name__}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
