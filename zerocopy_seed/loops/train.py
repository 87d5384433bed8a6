"""One training run: its directory, progress, checkpoints and end."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from zerocopy_envs.errors import UserError
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import Config
from zerocopy_seed.config_sweep import has_members
from zerocopy_seed.loops.bridge import act_synchronously, bridge_program, init_learner, table_types
from zerocopy_seed.loops.compile_cache import use_compile_cache
from zerocopy_seed.loops.compiling import compile_once, make_mesh
from zerocopy_seed.loops.console import complain, draw, say
from zerocopy_seed.loops.environments import HostEnvironments, find_environment
from zerocopy_seed.loops.memory import check_memory
from zerocopy_seed.loops.on_device import (
    DATA_AXIS,
    Program,
    TrainState,
    init_train_state,
    make_dispatch,
    make_played_update,
    make_recorded_dispatch,
    make_update,
    make_window,
    metric_names,
    shard_dispatch,
    shard_train_state,
    spread_types,
)
from zerocopy_seed.loops.record import DISPATCH_S, RunRecord, metrics_row
from zerocopy_seed.loops.recorded import check_record, init_from_record, open_record, recorded_program
from zerocopy_seed.loops.recording import Recording, check_recording, make_description, open_recording
from zerocopy_seed.loops.run_checkpoint import CHECKPOINTS, empty_replay, restore_train_state, saves_replay
from zerocopy_seed.loops.run_dir import check_run_dir, make_run_dir, write_config
from zerocopy_seed.loops.run_lock import lock_run_dir
from zerocopy_seed.loops.signals import StopRequest, hearing_signals
from zerocopy_seed.loops.train_members import train_members
from zerocopy_seed.metrics import MetricsWriter
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.plotting import plot_learning_curve
from zerocopy_seed.progress import Progress
from zerocopy_seed.remote.addresses import parse_address, require_free
from zerocopy_seed.types import Agent


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
    if has_members(config):
        return train_members(config, run_dir, resume, stop)
    if config.env.place == "actors" and not config.source:
        act_synchronously()
    stored = open_record(config) if config.source else None
    environment = find_environment(config.env) if stored is None else None
    in_actors = config.env.place == "actors"
    on_device = environment if isinstance(environment, Vectorized) and not in_actors else None
    if environment is not None and on_device is None:
        act_synchronously()
        _check_bridge(config, environment)
    spec = stored.index.description.spec if environment is None else environment.spec
    agent = make_agent(config.agent, config.network, spec, num_slots=config.env.num_envs)
    if stored is not None:
        check_record(config, agent, stored)
    description = make_description(config, agent, spec) if config.record.dir else None
    if description is not None:
        check_recording(config.record, description)
    mesh = make_mesh(config.devices.num_devices)
    check_run_dir(config, run_dir, resume)
    use_compile_cache()

    def init() -> TrainState:
        if stored is not None:
            return init_from_record(agent, config.seed)
        if on_device is None:
            return init_learner(agent, config.seed)
        return init_train_state(agent, on_device, config.seed, config.env.num_envs)

    def init_without_replay() -> TrainState:
        return _with_replay(init(), ())

    state_types = jax.eval_shape(init)  # traced before anything is written: what does not fit is refused here
    in_memory = state_types
    if stored is None and on_device is None:
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
        say("stopped before it began; nothing was written")
        return 0
    make_run_dir(run_dir)
    with (
        lock_run_dir(run_dir),
        Checkpointer(run_dir / CHECKPOINTS, config.checkpoint.max_to_keep, warn=complain) as saves,
    ):
        resumed_at = None
        if resume and saves.steps():
            notes: list[str] = []
            resumed_at, state = restore_train_state(saves, state_types, warn=notes.append)
            if resumed_at >= config.total_env_steps:
                total = f"total_env_steps = {config.total_env_steps:,}"
                say(f"{run_dir} is at {resumed_at:,} env_steps, at or past {total}: nothing to do")
                return 0
            for line in (f"resuming {run_dir} at {resumed_at:,} env_steps", *notes):
                say(line)
        elif resume:
            complain(f"{run_dir}: no checkpoint was finished there; starting from the beginning")
        write_config(config, run_dir)
        say("compiling ...")
        began = time.perf_counter()
        if resumed_at is None:
            state = _with_replay(
                compile_once(init_without_replay)(), empty_replay(state_types.learner.replay)
            )
        with contextlib.ExitStack() as stack:
            recording = None
            if description is not None:
                recording = stack.enter_context(open_recording(config.record, description))
            if stored is not None:
                program = stack.enter_context(recorded_program(config, agent, stored, state))
            elif on_device is None:
                program = stack.enter_context(
                    bridge_program(config, agent, spec, state, run_dir, stop, say=say, warn=complain)
                )
            else:
                program, state = _compile(config, on_device, agent, state, mesh, recording)
            compile_s = time.perf_counter() - began
            metrics = stack.enter_context(
                MetricsWriter(
                    run_dir,
                    tensorboard=config.metrics.tensorboard,
                    resume_env_steps=resumed_at,
                    warn=complain,
                )
            )
            progress = stack.enter_context(
                Progress(config.total_env_steps, sys.stdout, as_int(state.learner.env_steps))
            )
            progress.compiled(compile_s)
            record = RunRecord(
                config,
                agent,
                saves,
                metrics,
                env_steps=as_int(state.learner.env_steps),
                resumed_at=resumed_at,
                save_replay=save_replay,
            )
            state = _loop(program, state, record, progress, stop)
            progress.close()
            # Before actors are seen off, which may take longer than there is time.
            saved = record.save_last(state) and record.wait()
    failure = program.failure()
    if failure:
        complain(failure)
    if not saved:
        complain(f"{run_dir}: the last checkpoint could not be saved")
        return 1
    say(f"saved {run_dir} at {record.env_steps:,} env_steps")
    draw(plot_learning_curve, run_dir, run_dir / "learning_curve.png")
    return 1 if failure else 0


def _check_bridge(config: Config, environment: Vectorized | HostEnvironments) -> None:
    require_free(parse_address(config.bridge.address, to_listen=True))
    if config.devices.num_devices > 1:
        raise UserError(
            "devices.num_devices",
            expected="1 where environments are in actors",
            found=str(config.devices.num_devices),
        )
    if config.record.dir:
        raise UserError(
            "record.dir",
            expected="nothing where environments are in actors: what they play is not recorded yet",
            found=repr(config.record.dir),
            remedy="leave it out, or choose a JAX environment on the device",
        )
    if isinstance(environment, HostEnvironments) and environment.owns_loop and config.bridge.local_actors:
        raise UserError(
            "bridge.local_actors",
            expected=f"0, since {config.env.name} is the spec of a simulator that joins by itself",
            found=str(config.bridge.local_actors),
            remedy="add --bridge.local-actors 0",
        )


def _compile(
    config: Config,
    environment: Vectorized,
    agent: Agent,
    state: TrainState,
    mesh: Mesh | None,
    recording: Recording | None,
) -> tuple[Program, TrainState]:
    """The program, and the state laid out as it wants it."""
    unroll_length = config.agent.unroll_length
    names = metric_names(make_update(agent, environment, unroll_length), state)
    acting_agent, axis_name = agent, None
    if mesh is not None:
        axis_name = DATA_AXIS
        acting_agent = make_agent(
            config.agent,
            config.network,
            environment.spec,
            num_slots=config.env.num_envs,
            axis_name=axis_name,
        )
        state = shard_train_state(state, mesh)
    if recording is None:
        dispatch = make_dispatch(
            make_update(acting_agent, environment, unroll_length, axis_name=axis_name), names
        )
    else:
        update = make_played_update(acting_agent, environment, unroll_length, axis_name=axis_name)
        dispatch = make_recorded_dispatch(update, names, recording.chunk, axis_name=axis_name)
    if mesh is not None:
        dispatch = shard_dispatch(dispatch, mesh, is_recorded=recording is not None)
    window = make_window(len(names))
    lowered = jax.jit(dispatch, donate_argnums=(0, 1)).lower(state, window, jnp.int32(1))
    compiled = hearing_signals(lowered.compile)
    return Program(agent, recording.recorded(compiled) if recording else compiled, names), state


def _loop(
    program: Program, state: TrainState, record: RunRecord, progress: Progress, stop: StopRequest
) -> TrainState:
    window = make_window(len(program.metric_names))
    seconds_per_update = DISPATCH_S
    last = record.is_finished or bool(stop or program.failure())
    while not last:
        num_updates = min(record.updates_ahead(), max(1, int(DISPATCH_S / seconds_per_update)))
        began = time.monotonic()
        state, window = program.dispatch(state, window, np.int32(num_updates))
        record.env_steps = as_int(state.learner.env_steps)
        now = time.monotonic()
        seconds_per_update = (now - began) / num_updates

        last = record.is_finished or bool(stop or program.failure())
        save_is_due = not last and record.save_is_due(now)
        if last or save_is_due or record.line_is_due:
            counters = state.learner.env_steps, state.learner.num_updates
            row = metrics_row(*counters, jax.device_get(window), program.metric_names) | program.figures()
            progress.update(record.write(row, now))
            window = make_window(len(program.metric_names))
        if save_is_due:
            record.save(state)
    return state


def _with_replay(state: TrainState, replay: Any) -> TrainState:
    return state._replace(learner=state.learner._replace(replay=replay))
