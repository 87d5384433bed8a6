"""One training run: its directory, progress, checkpoints and end."""

from __future__ import annotations

import pathlib
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from zerocopy_envs.errors import UserError
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import CheckpointError, Checkpointer
from zerocopy_seed.config import Config
from zerocopy_seed.config_file import dump_config, load_run_config, refuse_changed_mathematics
from zerocopy_seed.loops.on_device import (
    DATA_AXIS,
    TrainState,
    Window,
    init_train_state,
    init_window,
    make_dispatch,
    make_update,
    shard_dispatch,
    shard_train_state,
)
from zerocopy_seed.loops.setup import make_environment, use_compile_cache
from zerocopy_seed.loops.signals import StopRequest
from zerocopy_seed.metrics import MetricsWriter
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.plotting import plot_learning_curve
from zerocopy_seed.progress import Progress
from zerocopy_seed.types import Agent

# Between dispatches signals are heard and checkpoints made, so a dispatch is kept well under a second.
_DISPATCH_S = 0.3


class Run(NamedTuple):
    """What the loop calls: `agent`, and `dispatch(state, window, num_updates)` compiled; `empty_window` to begin."""

    agent: Agent
    dispatch: Any
    empty_window: Window
    compile_s: float


def train(config: Config, run_dir: pathlib.Path, *, resume: bool = False) -> int:
    """Trains `config` into `run_dir` until `total_env_steps`, SIGINT or SIGTERM; saves a checkpoint at the end.

    Args:
      config: the experiment.
      run_dir: made if it is not there; without `resume` it must not hold a run.
      resume: go on from the newest intact checkpoint of `run_dir`; with none, from the start.

    Returns:
      The process's exit code: 0, or 1 if the last checkpoint could not be saved.

    Raises:
      UserError: before anything is compiled or written, if the run cannot be begun.
    """
    environment = make_environment(config.env)
    mesh = _make_mesh(config.devices.num_devices)
    axis_name = DATA_AXIS if mesh is not None else None
    agent = make_agent(config.agent, config.network, environment.spec, axis_name=axis_name)
    single_device_agent = make_agent(config.agent, config.network, environment.spec)
    _check_run_dir(config, run_dir, resume)
    use_compile_cache()

    def init() -> TrainState:
        return init_train_state(single_device_agent, environment, config.seed, config.env.num_envs)

    # Traced before anything is written: what does not fit together is refused here.
    state_shapes = jax.eval_shape(init)
    with StopRequest() as stop, Checkpointer(
        run_dir / "checkpoints", config.checkpoint.max_to_keep, warn=_complain
    ) as saves:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.toml").write_text(dump_config(config))
        started = time.perf_counter()
        if resume and saves.steps():
            step, items = saves.restore(_checkpoint_items(agent, state_shapes))
            state = TrainState(items["learner"], *items["loop"])
            print(f"resuming {run_dir} at {step:,} env_steps", flush=True)
        else:
            step = None
            state = jax.jit(init)()
        update = make_update(
            single_device_agent, environment, config.agent.unroll_length
        )
        window = init_window(update, state)
        dispatch = make_dispatch(make_update(agent, environment, config.agent.unroll_length, axis_name=axis_name))
        if mesh is not None:
            dispatch = shard_dispatch(dispatch, mesh)
            state = shard_train_state(state, mesh)
        compiled = (
            jax.jit(dispatch, donate_argnums=(0, 1)).lower(state, window, jnp.int32(1)).compile()
        )
        compile_s = time.perf_counter() - started
        run = Run(agent, compiled, window, compile_s)
        metrics = MetricsWriter(run_dir, tensorboard=config.metrics.tensorboard, resume_env_steps=step)
        with metrics:
            return _loop(config, run_dir, run, state, saves, metrics, stop)


def _loop(
    config: Config,
    run_dir: pathlib.Path,
    run: Run,
    state: TrainState,
    saves: Checkpointer,
    metrics: MetricsWriter,
    stop: StopRequest,
) -> int:
    total, line_every = config.total_env_steps, config.metrics.every_env_steps
    steps_per_update = config.env.num_envs * config.agent.unroll_length
    env_steps = as_int(state.learner.env_steps)
    progress = Progress(total, sys.stdout, env_steps)
    progress.compiled(run.compile_s)

    window = _fresh(run.empty_window)
    next_line = (env_steps // line_every + 1) * line_every
    saved_at = line_at = time.monotonic()
    line_env_steps = last_saved = env_steps
    seconds_per_update = _DISPATCH_S
    num_failed_saves = 0

    while env_steps < total and not stop:
        # An update takes at most steps_per_update, so this many cannot pass the total or skip a line by an update.
        to_total = max(1, (total - env_steps) // steps_per_update)
        to_line = max(1, -(-(next_line - env_steps) // steps_per_update))
        num_updates = min(to_total, to_line, max(1, int(_DISPATCH_S / seconds_per_update)))
        began = time.monotonic()
        state, window = run.dispatch(state, window, np.int32(num_updates))
        env_steps = as_int(state.learner.env_steps)
        now = time.monotonic()
        seconds_per_update = (now - began) / num_updates

        save_due = now - saved_at >= config.checkpoint.every_s
        last = env_steps >= total or bool(stop)
        if env_steps >= next_line or save_due or last:
            row = _metrics_row(state, jax.device_get(window))
            row["env_steps_per_s"] = (env_steps - line_env_steps) / (now - line_at)
            metrics.write(row)
            progress.update(row)
            window = _fresh(run.empty_window)
            next_line = (env_steps // line_every + 1) * line_every
            line_at, line_env_steps = now, env_steps
        if save_due and not last:
            num_failed_saves += not _save(saves, env_steps, run.agent, state)
            saved_at, last_saved = time.monotonic(), env_steps

    failed = False
    if env_steps != last_saved or not saves.steps():
        failed = not _save(saves, env_steps, run.agent, state)
    failed = not _wait(saves) or failed
    progress.close()
    plot_learning_curve(run_dir, run_dir / "learning_curve.png")
    if failed:
        print(f"{run_dir}: the last checkpoint could not be saved", file=sys.stderr)
        return 1
    print(f"saved {run_dir} at {env_steps:,} env_steps", flush=True)
    return 0


def _make_mesh(num_devices: int) -> Mesh | None:
    available = jax.device_count()
    if num_devices > available:
        raise UserError(
            "devices.num_devices",
            expected=f"at most {available}, the {jax.default_backend()} devices here",
            found=str(num_devices),
        )
    return Mesh(np.array(jax.devices()[:num_devices]), (DATA_AXIS,)) if num_devices > 1 else None


def _check_run_dir(config: Config, run_dir: pathlib.Path, resume: bool) -> None:
    holds_run = (run_dir / "config.toml").exists()
    if holds_run and not resume:
        raise UserError(
            f"--run-dir {run_dir}",
            expected="a new directory",
            found="one that holds a run",
            remedy="add --resume to go on with it, or choose another",
        )
    if resume and not holds_run:
        raise UserError(f"--run-dir {run_dir}", expected="a run to resume", found="no config.toml there")
    if resume:
        refuse_changed_mathematics(load_run_config(run_dir), config)


def _checkpoint_items(agent: Agent, state: TrainState) -> dict[str, Any]:
    """A checkpoint's separate items: `acting` is all that evaluation reads."""
    return {
        "acting": agent.acting(state.learner),
        "learner": state.learner,
        "loop": (state.actor, state.episodes),
    }


def _save(saves: Checkpointer, env_steps: int, agent: Agent, state: TrainState) -> bool:
    try:
        saves.save(env_steps, _checkpoint_items(agent, state))
    except CheckpointError as error:
        print(f"checkpoint {env_steps}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _complain(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _wait(saves: Checkpointer) -> bool:
    try:
        saves.wait()
    except CheckpointError as error:
        print(f"checkpoint: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _fresh(window: Window) -> Window:
    """A copy to donate; the empty window itself is kept."""
    return jax.tree.map(jnp.copy, window)


def _metrics_row(state: TrainState, window: Window) -> dict[str, Any]:
    """A line of metrics.jsonl: counters, means over the window, and episode figures if any episode ended."""
    row: dict[str, Any] = {
        "env_steps": as_int(state.learner.env_steps),
        "num_updates": as_int(state.learner.num_updates),
    }
    episodes = window.episodes
    num_episodes = int(episodes.num_episodes)
    row["num_episodes"] = num_episodes
    if num_episodes:
        row["episode_return"] = float(episodes.return_sum.total) / num_episodes
        row["episode_length"] = int(episodes.length_sum) / num_episodes
    for name, running in window.metric_sums.items():
        row[name] = float(running.total) / max(int(window.num_updates), 1)
    return row
