"""One training run: its directory, progress, checkpoints and end."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pathlib
import sys
import time
from typing import Any, NoReturn

import jax
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_seed import hosts
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import Config
from zerocopy_seed.config_sweep import has_members
from zerocopy_seed.loops.compile_cache import use_compile_cache
from zerocopy_seed.loops.compiling import compile_once
from zerocopy_seed.loops.console import complain, draw, keep_journal, say
from zerocopy_seed.loops.ending import end
from zerocopy_seed.loops.evaluation import Evaluation, evaluate_while_training
from zerocopy_seed.loops.layout import STATE_SPECS, lay_out, require_split
from zerocopy_seed.loops.memory import check_memory
from zerocopy_seed.loops.on_device import Program, TrainState, make_window
from zerocopy_seed.loops.origin import Origin, load_origin
from zerocopy_seed.loops.profiling import with_profile
from zerocopy_seed.loops.record import DISPATCH_S, RunRecord, metrics_row
from zerocopy_seed.loops.recording import check_recording, make_description, open_recording
from zerocopy_seed.loops.run_checkpoint import (
    CHECKPOINTS,
    empty_replay,
    load_one_run_config,
    restore_train_state,
    saves_replay,
)
from zerocopy_seed.loops.run_dir import check_run_dir, make_run_dir, run_identity, write_config
from zerocopy_seed.loops.run_events import note_ended, note_resumed, note_signal, note_training
from zerocopy_seed.loops.run_lock import lock_run_dir
from zerocopy_seed.loops.several_hosts import refuse_on_hosts, require_same_run, require_shared
from zerocopy_seed.loops.signals import StopRequest
from zerocopy_seed.loops.sources import Source, choose_source
from zerocopy_seed.loops.train_members import train_members
from zerocopy_seed.metrics import MetricsWriter
from zerocopy_seed.metrics_page import check_metrics, serve_metrics
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.plotting import plot_learning_curve
from zerocopy_seed.progress import Progress


def train(
    config: Config,
    run_dir: pathlib.Path,
    *,
    resume: bool = False,
    init_from: pathlib.Path | None = None,
    profile: bool = False,
    stop: StopRequest | None = None,
) -> int:
    """Trains `config` into `run_dir` until `total_env_steps`, SIGINT or SIGTERM; saves at the end.

    Args:
      config: the experiment, one run or many (`train_members`).
      run_dir: made if it is not there; without `resume` it must not hold a run.
      resume: go on from the newest intact checkpoint of `run_dir`; if none was finished, from the start.
      init_from: a run directory whose parameters this one begins with.
      profile: write a trace of two updates into `run_dir`, for Perfetto.
      stop: already listening for signals, since before the imports; None listens from here on.

    Returns:
      The process's exit code: 0, or 1 if the last checkpoint could not be saved.

    Raises:
      UserError: before anything is compiled or written, if the run cannot be begun.
    """
    if stop is not None:
        return _train(config, run_dir, resume, init_from, profile, stop)
    with StopRequest() as stop:
        return _train(config, run_dir, resume, init_from, profile, stop)


def _train(
    config: Config,
    run_dir: pathlib.Path,
    resume: bool,
    init_from: pathlib.Path | None,
    profile: bool,
    stop: StopRequest,
) -> int:
    require_same_run(config, run_dir=run_dir, resume=resume, init_from=init_from)
    hosts.require_all(lambda: refuse_on_hosts(config, profile=profile))
    if has_members(config):
        if profile:
            raise UserError("--profile", expected="one run", found="many seeds or settings at once")
        if init_from is not None:
            raise UserError("--init-from", expected="one run", found="many seeds or settings at once")
        return train_members(config, run_dir, resume, stop)
    source = hosts.require_all(lambda: choose_source(config))
    agent, mesh = source.agent, source.mesh
    description = make_description(config, agent, source.spec) if config.record.dir else None
    if description is not None:
        check_recording(config.record, description)
    hosts.require_all(lambda: check_run_dir(config, run_dir, resume))
    hosts.require_all(lambda: check_metrics(config.metrics) if hosts.is_first() else None)
    use_compile_cache()

    # traced before anything is written: what does not fit is refused here
    state_types = jax.eval_shape(source.init)
    save_replay = hosts.require_all(lambda: _check_memory(config, source, state_types))
    if mesh is not None:  # one device need not hold all of it, not even at first
        state_types = lay_out(STATE_SPECS, state_types, mesh)
        require_split(state_types.learner.params, mesh)
    origin = None
    if init_from is not None:
        hosts.require_all(lambda: load_one_run_config(init_from))
        origin = load_origin(init_from, agent, state_types.learner)
    if hosts.any_of(bool(stop)):
        say("stopped before it began; nothing was written")
        return 0
    with contextlib.ExitStack() as whole_run:
        hosts.require_all(lambda: _occupy(run_dir, whole_run))
        require_shared(run_dir)
        saves = Checkpointer(run_dir / CHECKPOINTS, config.checkpoint.max_to_keep, warn=complain)
        resumed_at, notes = None, []
        if resume and hosts.any_of(bool(saves.steps())):
            resumed_at, state = restore_train_state(saves, state_types, warn=notes.append)
            if resumed_at >= config.total_env_steps:
                total = f"total_env_steps = {config.total_env_steps:,}"
                say(f"{run_dir} is at {resumed_at:,} env_steps, at or past {total}: nothing to do")
                return 0
            for line in (f"resuming {run_dir} at {resumed_at:,} env_steps", *notes):
                say(line)
        elif resume and hosts.is_first():
            complain(f"{run_dir}: no checkpoint was finished there; starting from the beginning")
        recording = None
        if description is not None:  # others may hold the record: found before anything is written
            recording = whole_run.enter_context(open_recording(config.record, description))
        run_id = hosts.of_first_as_json(hosts.require_all(lambda: _begin(config, run_dir)))
        whole_run.enter_context(keep_journal(run_dir, run_id))
        whole_run.enter_context(saves)  # a save that fails as all ends is still noted
        page = None
        if hosts.is_first():
            page = whole_run.enter_context(serve_metrics(config.metrics, run_id))
        if resumed_at is not None:
            note_resumed(resumed_at, notes)
        say("compiling ...")
        began = time.perf_counter()
        if resumed_at is None:
            state = _init(source, state_types, origin)
            if origin is not None:
                say(f"parameters of {init_from} at {origin.env_steps:,} env_steps")
        with contextlib.ExitStack() as stack:
            program = stack.enter_context(source.program(state, run_dir, stop, recording))
            if profile:
                program = with_profile(program, run_dir)
            compile_s = time.perf_counter() - began
            metrics, terminal = None, stack.enter_context(open(os.devnull, "w"))
            if hosts.is_first():
                terminal = sys.stdout
                metrics = stack.enter_context(
                    MetricsWriter(
                        run_dir,
                        tensorboard=config.metrics.tensorboard,
                        resume_env_steps=resumed_at,
                        warn=complain,
                    )
                )
            progress = stack.enter_context(
                Progress(config.total_env_steps, terminal, as_int(state.learner.env_steps))
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
                page=page,
            )
            if page is not None:
                page.show(program.gauges)
            note_training(record.env_steps)
            evaluation = stack.enter_context(
                evaluate_while_training(
                    config, agent, source.environment, state.learner, run_dir, stop, warn=complain
                )
            )
            state = _loop(program, state, record, evaluation, progress, stop)
            progress.close()
            note_signal(stop, record.env_steps)
            # Before actors are seen off, which may take longer than there is time.
            saved = record.save_last(state) and record.wait()
            if evaluation is not None and not program.failure() and (found := evaluation.finish(stop)):
                counters = state.learner.env_steps, state.learner.num_updates
                row = metrics_row(*counters, make_window(len(program.metric_names)), program.metric_names)
                record.write(program.figures(row) | found, time.monotonic())
        failure = _failure(program)
        note_ended(record.env_steps, saved=saved, failure=failure)
    if failure:
        complain(failure)
    if not saved:
        complain(f"{run_dir}: the last checkpoint could not be saved")
        return 1
    say(f"saved {run_dir} at {record.env_steps:,} env_steps")
    if hosts.is_first():
        draw(plot_learning_curve, run_dir, run_dir / "learning_curve.png")
    return 1 if failure else 0


def _occupy(run_dir: pathlib.Path, whole_run: contextlib.ExitStack) -> None:
    if hosts.is_first():
        make_run_dir(run_dir)
        whole_run.enter_context(lock_run_dir(run_dir))


def _begin(config: Config, run_dir: pathlib.Path) -> str:
    """The run's identity, once its configuration is written; on the first host."""
    if not hosts.is_first():
        return ""
    write_config(config, run_dir)
    return run_identity(run_dir)


def _failure(program: Program) -> str:
    """Why the run could not go on, here or on another host; "" if it could."""
    failures = hosts.all_as_json(program.failure())
    others = (f"host {host}: {failure}" for host, failure in enumerate(failures) if failure)
    return failures[hosts.index()] or next(others, "")


def _check_memory(config: Config, source: Source, types: TrainState) -> bool:
    """Whether checkpoints hold the replay of a run that fits."""
    in_memory = types._replace(actor=(types.actor, source.besides(types)))
    devices = jax.local_devices()[: config.devices.num_learning // hosts.count()]
    check = functools.partial(check_memory, config, in_memory, devices, num_hosts=hosts.count())
    # whether a replay is saved is asked only of one that fits
    check(save_replay=config.checkpoint.replay is True)
    save_replay = saves_replay(config.checkpoint, types)
    check(save_replay=save_replay)
    return save_replay


def _init(source: Source, types: TrainState, origin: Origin | None) -> TrainState:
    """The state of a run that begins, each part of it made where it will lie."""

    def init_without_replay(params: Any) -> TrainState:
        state = _with_replay(source.init(), ())
        if origin is None or source.agent.begin_from is None:
            return state
        return state._replace(learner=source.agent.begin_from(state.learner, params))

    params = None if origin is None else jax.tree.map(np.asarray, origin.params)
    where = None
    if source.mesh is not None:
        where = jax.tree.map(lambda leaf: leaf.sharding, _with_replay(types, ()))
    init = compile_once(init_without_replay, params, out_shardings=where)
    return _with_replay(init(params), empty_replay(types.learner.replay))


def _loop(
    program: Program,
    state: TrainState,
    record: RunRecord,
    evaluation: Evaluation | None,
    progress: Progress,
    stop: StopRequest,
) -> TrainState:
    window = make_window(len(program.metric_names))
    seconds_per_update = DISPATCH_S
    last = record.is_finished or hosts.any_of(bool(stop or program.failure()))
    while not last:
        milestone = math.inf if evaluation is None else evaluation.due_at
        num_updates = min(record.updates_ahead(milestone), max(1, int(DISPATCH_S / seconds_per_update)))
        [num_updates] = hosts.of_first(num_updates)
        began = time.monotonic()
        state, window = program.dispatch(state, window, np.int32(num_updates))
        record.env_steps = as_int(state.learner.env_steps)
        now = time.monotonic()
        seconds_per_update = (now - began) / num_updates

        votes = hosts.gather([bool(stop or program.failure()), record.has_failed_part])
        ends, has_failed = (bool(column.any()) for column in votes.T)
        if has_failed and hosts.count() > 1:
            _end_without_part(record)
        last = record.is_finished or ends
        evaluated = evaluation.look(state.learner, record.env_steps) if evaluation is not None else {}
        save_is_due = not last and record.save_is_due(now)
        line_is_due = (last or save_is_due) and record.has_news or record.line_is_due
        line_is_due = line_is_due or (record.is_stuck(now) and int(window.num_updates) > 0)
        save_is_due, line_is_due = map(bool, hosts.of_first(save_is_due, line_is_due))
        if line_is_due or evaluated:
            counters = state.learner.env_steps, state.learner.num_updates
            row = metrics_row(*counters, jax.device_get(window), program.metric_names)
            progress.update(record.write(program.figures(row) | evaluated, now))
            window = make_window(len(program.metric_names))
        if save_is_due:
            record.save(state)
    return state


def _end_without_part(record: RunRecord) -> NoReturn:
    """Ends where a host could not write its part of a checkpoint: others wait for it in Orbax, for long."""
    if record.has_failed_part:
        record.wait()  # says why
    complain("a host could not write its part of a checkpoint, and the run ends on all; --resume goes on")
    end(1)


def _with_replay(state: TrainState, replay: Any) -> TrainState:
    return state._replace(learner=state.learner._replace(replay=replay))
