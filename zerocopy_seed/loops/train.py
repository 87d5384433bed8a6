"""One training run: its directory, progress, checkpoints and end."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from zerocopy_envs.errors import UserError
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer, CheckpointError
from zerocopy_seed.config import Config
from zerocopy_seed.config_file import RUN_CONFIG, dump_config, load_run_config, refuse_changed_mathematics
from zerocopy_seed.loops.bridge import act_synchronously, bridge_program, init_learner, table_types
from zerocopy_seed.loops.compile_cache import use_compile_cache
from zerocopy_seed.loops.environments import HostEnvironments, find_environment
from zerocopy_seed.loops.memory import check_memory
from zerocopy_seed.loops.on_device import (
    DATA_AXIS,
    Program,
    TrainState,
    Window,
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
    shard_dispatch,
    shard_train_state,
    spread_types,
)
from zerocopy_seed.loops.run_checkpoint import (
    CHECKPOINTS,
    checkpoint_items,
    empty_replay,
    restore_train_state,
    saves_replay,
)
from zerocopy_seed.loops.run_lock import lock_run_dir
from zerocopy_seed.loops.signals import StopRequest, hearing_signals
from zerocopy_seed.metrics import MetricsWriter
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.plotting import plot_learning_curve
from zerocopy_seed.progress import Progress
from zerocopy_seed.remote.addresses import parse_address, require_free
from zerocopy_seed.types import Agent

# Signals are heard and checkpoints made between dispatches, so a dispatch is kept well under a second.
_DISPATCH_S = 0.3


def train(
    config: Config, run_dir: pathlib.Path, *, resume: bool = False, stop: StopRequest | None = None
) -> int:
    """Trains `config` into `run_dir` until `total_env_steps`, SIGINT or SIGTERM; saves at the end.

    Args:
      config: the experiment.
      run_dir: made if it is not there; without `resume` it must not hold a run.
      resume: go on from the newest intact checkpoint of `run_dir`; if none was finished, from the start.
      stop: already listening for signals, since before the imports; None listens from here on.

    Returns:
      The process's exit code: 0, or 1 if the last checkpoint could not be saved.

    Raises:
      UserError: before anything is compiled or written, if the run cannot be begun.
    """
    if stop is not None:
        return _train(config, run_dir, resume, stop)
    with StopRequest() as stop:
        return _train(config, run_dir, resume, stop)


def _train(config: Config, run_dir: pathlib.Path, resume: bool, stop: StopRequest) -> int:
    if config.env.place == "actors":
        act_synchronously()
    environment = find_environment(config.env)
    in_actors = config.env.place == "actors"
    on_device = environment if isinstance(environment, Vectorized) and not in_actors else None
    if on_device is None:
        act_synchronously()
        _check_bridge(config, environment)
    spec = environment.spec
    agent = make_agent(config.agent, config.network, spec, num_slots=config.env.num_envs)
    mesh = _make_mesh(config.devices.num_devices)
    _check_run_dir(config, run_dir, resume)
    use_compile_cache()

    def init() -> TrainState:
        if on_device is None:
            return init_learner(agent, config.seed)
        return init_train_state(agent, on_device, config.seed, config.env.num_envs)

    def init_without_replay() -> TrainState:
        return _with_replay(init(), ())

    state_types = jax.eval_shape(init)  # traced before anything is written: what does not fit is refused here
    in_memory = state_types
    if on_device is None:
        in_memory = state_types._replace(actor=table_types(config, agent, spec, state_types))
    devices = jax.devices()[: config.devices.num_devices]
    # whether a replay is saved is asked only of one that fits
    check_memory(config, in_memory, devices, save_replay=config.checkpoint.replay is True)
    save_replay = saves_replay(config.checkpoint, state_types)
    check_memory(config, in_memory, devices, save_replay=save_replay)
    if mesh is not None:  # one device need not hold all of it, not even at first
        replay_types = spread_types(state_types.learner.replay, mesh)
        state_types = _with_replay(state_types, replay_types)
    if stop:
        _say("stopped before it began; nothing was written")
        return 0
    _make_run_dir(run_dir)
    with (
        lock_run_dir(run_dir),
        Checkpointer(run_dir / CHECKPOINTS, config.checkpoint.max_to_keep, warn=_complain) as saves,
    ):
        resumed_at = None
        if resume and saves.steps():
            notes: list[str] = []
            resumed_at, state = restore_train_state(saves, state_types, warn=notes.append)
            if resumed_at >= config.total_env_steps:
                total = f"total_env_steps = {config.total_env_steps:,}"
                _say(f"{run_dir} is at {resumed_at:,} env_steps, at or past {total}: nothing to do")
                return 0
            for line in (f"resuming {run_dir} at {resumed_at:,} env_steps", *notes):
                _say(line)
        elif resume:
            _complain(f"{run_dir}: no checkpoint was finished there; starting from the beginning")
        _write_config(config, run_dir)
        _say("compiling ...")
        began = time.perf_counter()
        if resumed_at is None:
            state = _with_replay(
                _compile_once(init_without_replay)(), empty_replay(state_types.learner.replay)
            )
        with contextlib.ExitStack() as stack:
            if on_device is None:
                program = stack.enter_context(
                    bridge_program(config, agent, spec, state, run_dir, stop, say=_say, warn=_complain)
                )
            else:
                program, state = _compile(config, on_device, agent, state, mesh)
            compile_s = time.perf_counter() - began
            metrics = stack.enter_context(
                MetricsWriter(
                    run_dir,
                    tensorboard=config.metrics.tensorboard,
                    resume_env_steps=resumed_at,
                    warn=_complain,
                )
            )
            progress = stack.enter_context(
                Progress(config.total_env_steps, sys.stdout, as_int(state.learner.env_steps))
            )
            progress.compiled(compile_s)
            state = _loop(config, program, state, saves, save_replay, metrics, progress, stop)
            progress.close()
            # Before actors are seen off, which may take longer than there is time.
            env_steps = as_int(state.learner.env_steps)
            _try(saves.wait)  # an earlier save's failure must not stand for this one's
            saved = env_steps == resumed_at or (
                _try(saves.save, env_steps, checkpoint_items(agent, state, replay=save_replay))
                and _try(saves.wait)
            )
    failure = program.failure()
    if failure:
        _complain(failure)
    if not saved:
        _complain(f"{run_dir}: the last checkpoint could not be saved")
        return 1
    _say(f"saved {run_dir} at {env_steps:,} env_steps")
    try:
        plot_learning_curve(run_dir, run_dir / "learning_curve.png")
    except Exception as error:  # a picture is not worth a finished run
        _complain(f"{run_dir / 'learning_curve.png'}: not drawn: {error}")
    return 1 if failure else 0


def _check_bridge(config: Config, environment: Vectorized | HostEnvironments) -> None:
    require_free(parse_address(config.bridge.address, to_listen=True))
    if config.devices.num_devices > 1:
        raise UserError(
            "devices.num_devices",
            expected="1 where environments are in actors",
            found=str(config.devices.num_devices),
        )
    if isinstance(environment, HostEnvironments) and environment.owns_loop and config.bridge.local_actors:
        raise UserError(
            "bridge.local_actors",
            expected=f"0, since {config.env.name} is the spec of a simulator that joins by itself",
            found=str(config.bridge.local_actors),
            remedy="add --bridge.local-actors 0",
        )


def _compile(
    config: Config, environment: Vectorized, agent: Agent, state: TrainState, mesh: Mesh | None
) -> tuple[Program, TrainState]:
    """The program, and the state laid out as it wants it."""
    unroll_length = config.agent.unroll_length
    update = make_update(agent, environment, unroll_length)
    names = metric_names(update, state)
    dispatch = make_dispatch(update, names)
    if mesh is not None:
        sharded_agent = make_agent(
            config.agent,
            config.network,
            environment.spec,
            num_slots=config.env.num_envs,
            axis_name=DATA_AXIS,
        )
        update = make_update(sharded_agent, environment, unroll_length, axis_name=DATA_AXIS)
        dispatch = shard_dispatch(make_dispatch(update, names), mesh)
        state = shard_train_state(state, mesh)
    window = make_window(len(names))
    lowered = jax.jit(dispatch, donate_argnums=(0, 1)).lower(state, window, jnp.int32(1))
    return Program(agent, hearing_signals(lowered.compile), names), state


def _loop(
    config: Config,
    program: Program,
    state: TrainState,
    saves: Checkpointer,
    save_replay: bool,
    metrics: MetricsWriter,
    progress: Progress,
    stop: StopRequest,
) -> TrainState:
    total, line_every = config.total_env_steps, config.metrics.every_env_steps
    steps_per_update = config.env.num_envs * config.agent.unroll_length
    env_steps = line_env_steps = as_int(state.learner.env_steps)
    next_line = _next_multiple(env_steps, line_every)
    window = make_window(len(program.metric_names))
    saved_at = line_at = time.monotonic()
    seconds_per_update = _DISPATCH_S

    diverged = False
    last = env_steps >= total or bool(stop or program.failure())
    while not last:
        # An update takes at most steps_per_update: so many pass neither the total nor a line by an update.
        to_total = max(1, (total - env_steps) // steps_per_update)
        to_line = max(1, -(-(next_line - env_steps) // steps_per_update))
        num_updates = min(to_total, to_line, max(1, int(_DISPATCH_S / seconds_per_update)))
        began = time.monotonic()
        state, window = program.dispatch(state, window, np.int32(num_updates))
        env_steps = as_int(state.learner.env_steps)
        now = time.monotonic()
        seconds_per_update = (now - began) / num_updates

        last = env_steps >= total or bool(stop or program.failure())
        save_due = not last and now - saved_at >= config.checkpoint.every_s
        if last or save_due or env_steps >= next_line:
            row = _metrics_row(state, window, program.metric_names) | program.figures()
            row["env_steps_per_s"] = (env_steps - line_env_steps) / (now - line_at)
            metrics.write(row)
            progress.update(row)
            diverged = _warn_once_diverged(row, diverged)
            window = make_window(len(program.metric_names))
            next_line = _next_multiple(env_steps, line_every)
            line_at, line_env_steps = now, env_steps
        if save_due:
            _try(saves.save, env_steps, checkpoint_items(program.agent, state, replay=save_replay))
            saved_at = time.monotonic()
    return state


def _with_replay(state: TrainState, replay: Any) -> TrainState:
    return state._replace(learner=state.learner._replace(replay=replay))


def _next_multiple(value: int, step: int) -> int:
    return (value // step + 1) * step


def _compile_once(function: Callable[[], Any]) -> Callable[[], Any]:
    """Compiles what runs a single time; on the CPU optimising it would take longer than running it."""
    options: Any = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    lowered = jax.jit(function).lower()
    return hearing_signals(lambda: lowered.compile(compiler_options=options))


def _make_mesh(num_devices: int) -> Mesh | None:
    available = jax.device_count()
    if num_devices > available:
        raise UserError(
            "devices.num_devices",
            expected=f"at most {available}, the {jax.default_backend()} devices here",
            found=str(num_devices),
        )
    return Mesh(np.array(jax.devices()[:num_devices]), (DATA_AXIS,)) if num_devices > 1 else None


def _write_config(config: Config, run_dir: pathlib.Path) -> None:
    """Atomically: a kill while a run is resumed must not cost its configuration."""
    replacement = run_dir / f"{RUN_CONFIG}.tmp"
    replacement.write_text(dump_config(config))
    os.replace(replacement, run_dir / RUN_CONFIG)


def _make_run_dir(run_dir: pathlib.Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--run-dir {run_dir}",
            expected="a directory that can be made or written",
            found=error.strerror or str(error),
        ) from error


def _check_run_dir(config: Config, run_dir: pathlib.Path, resume: bool) -> None:
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


def _try(action: Callable[..., None], *arguments: Any) -> bool:
    """Training outlives a checkpoint that cannot be saved; the error is shown."""
    try:
        action(*arguments)
    except CheckpointError as error:
        _complain(str(error))
        return False
    return True


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a reader that has gone must not end the run
        print(line, flush=True)


def _complain(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _warn_once_diverged(row: dict[str, Any], warned: bool) -> bool:
    """Says the first time that a metric is not finite; whether it was said."""
    broken = [name for name, value in row.items() if not math.isfinite(value)]
    if broken and not warned:
        _complain(
            f"{', '.join(broken)}: not finite at {row['env_steps']:,} env_steps; the run has diverged, "
            "or its environment returns such numbers; checkpoints before this are the last good ones"
        )
    return warned or bool(broken)


def _metrics_row(state: TrainState, window: Window, names: tuple[str, ...]) -> dict[str, Any]:
    """A line of metrics.jsonl: counters, means over the window's updates, and episode figures if any."""
    window = jax.device_get(window)
    episodes, num_episodes = window.episodes, as_int(window.episodes.num_episodes)
    row: dict[str, Any] = {
        "env_steps": as_int(state.learner.env_steps),
        "num_updates": as_int(state.learner.num_updates),
        "num_episodes": num_episodes,
    }
    if num_episodes:
        row["episode_return"] = float(episodes.return_sum.total) / num_episodes
        row["episode_length"] = as_int(episodes.length_sum) / num_episodes
    if not int(window.num_updates):
        return row
    means = np.asarray(window.metric_sums.total) / int(window.num_updates)
    return row | dict(zip(names, means.tolist(), strict=True))
