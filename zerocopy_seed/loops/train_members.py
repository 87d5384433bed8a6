"""Training many runs at once: seeds and settings, each with a run directory of its own."""

from __future__ import annotations

import contextlib
import pathlib
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import Config
from zerocopy_seed.config_sources import is_mixed
from zerocopy_seed.config_sweep import Member, make_members
from zerocopy_seed.curves import MEMBERS
from zerocopy_seed.loops.compile_cache import use_compile_cache
from zerocopy_seed.loops.console import complain, draw, keep_journal, say
from zerocopy_seed.loops.devices import make_mesh
from zerocopy_seed.loops.environments import find_environment
from zerocopy_seed.loops.members import MembersProgram, compile_members, init_members, put_member, take_member
from zerocopy_seed.loops.memory import check_memory
from zerocopy_seed.loops.on_device import TrainState, init_train_state
from zerocopy_seed.loops.record import DISPATCH_S, RunRecord, metrics_row
from zerocopy_seed.loops.run_checkpoint import CHECKPOINTS, restore_train_state, saves_replay
from zerocopy_seed.loops.run_dir import check_run_dir, make_run_dir, run_identity, write_config
from zerocopy_seed.loops.run_events import note_ended, note_resumed, note_signal, note_training
from zerocopy_seed.loops.run_lock import lock_run_dir
from zerocopy_seed.loops.signals import StopRequest
from zerocopy_seed.metrics import MetricsWriter
from zerocopy_seed.metrics_page import check_metrics, serve_metrics
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.plotting import plot_learning_curve
from zerocopy_seed.progress import Progress
from zerocopy_seed.summary import write_summary


def train_members(config: Config, run_dir: pathlib.Path, resume: bool, stop: StopRequest) -> int:
    """Trains every member of `config` into a directory of its own below `run_dir`, all in one program.

    A member is the run that its own configuration would make alone. It stops where that would stop, and is
    saved then, while the others go on; a resumed one goes on from its own newest intact checkpoint.

    Args:
      config: of many runs (`has_members`).
      run_dir: as for `train`, which calls this.
      resume: likewise.
      stop: likewise.

    Returns:
      The process's exit code: 0, or 1 if a member's last checkpoint could not be saved.

    Raises:
      UserError: before anything is compiled or written, if the runs cannot be begun.
    """
    members, environment = make_members(config), _environment(config)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)
    mesh = make_mesh(config.devices)
    check_run_dir(config, run_dir, resume)
    check_metrics(config.metrics)
    use_compile_cache()
    types = jax.eval_shape(
        lambda: init_train_state(agent, environment, config.seed, config.env.num_envs)
    )  # traced before anything is written: what does not fit is refused here
    save_replay = _fit_in_memory(config, types, len(members))
    if stop:
        say("stopped before it began; nothing was written")
        return 0
    make_run_dir(run_dir)
    _allow_many_files()
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_run_dir(run_dir))
        all_saves = [
            Checkpointer(directory / CHECKPOINTS, config.checkpoint.max_to_keep, warn=complain)
            for directory in _directories(run_dir, members)
        ]
        if resume and all((saves.steps() or [0])[-1] >= config.total_env_steps for saves in all_saves):
            total = f"total_env_steps = {config.total_env_steps:,}"
            say(f"{run_dir}: all {len(members)} members are at or past {total}: nothing to do")
            return 0
        for directory in _directories(run_dir, members):
            make_run_dir(directory)
            stack.enter_context(lock_run_dir(directory))
        # all are ours before one is changed
        write_config(config, run_dir)
        for member, directory in zip(members, _directories(run_dir, members), strict=True):
            write_config(member.config, directory)
        run_id = run_identity(run_dir)
        stack.enter_context(keep_journal(run_dir, run_id))
        for saves in all_saves:
            stack.enter_context(saves)  # a save that fails as all ends is still noted
        page = stack.enter_context(serve_metrics(config.metrics, run_id))
        say(f"{len(members)} members in {run_dir / MEMBERS}")
        say("compiling ...")
        began = time.perf_counter()
        state = init_members(config, environment, members, mesh)
        resumed_at: list[int | None] = [None] * len(members)
        if resume:
            state, resumed_at = _restore(state, types, all_saves, run_dir)
        program = compile_members(config, agent, environment, state, mesh)
        compile_s = time.perf_counter() - began
        records = []
        for place, (member, saves) in enumerate(zip(members, all_saves, strict=True)):
            metrics = MetricsWriter(
                run_dir / MEMBERS / member.name,
                tensorboard=config.metrics.tensorboard,
                resume_env_steps=resumed_at[place],
                warn=complain,
            )
            records.append(
                RunRecord(
                    member.config,
                    agent,
                    saves,
                    stack.enter_context(metrics),
                    env_steps=resumed_at[place] or 0,
                    resumed_at=resumed_at[place],
                    save_replay=save_replay,
                    name=member.name,
                    page=page,
                )
            )
        env_steps = sum(record.env_steps for record in records)
        progress = stack.enter_context(Progress(config.total_env_steps * len(members), sys.stdout, env_steps))
        progress.compiled(compile_s)
        note_training(env_steps, num_members=len(members))
        begun = _loop(program, state, records, progress, stop)
        progress.close()
        env_steps = sum(record.env_steps for record in records)
        note_signal(stop, env_steps, num_members=len(members))
        saved = [was_begun and record.wait() for was_begun, record in zip(begun, records, strict=True)]
        note_ended(env_steps, saved=all(saved), num_members=len(members))
    return _end(run_dir, members, records, saved)


def _environment(config: Config) -> Vectorized:
    environment = find_environment(config.env)
    in_actors = config.env.place == "actors" or is_mixed(config)
    if isinstance(environment, Vectorized) and not in_actors:
        return environment
    raise UserError(
        "num_seeds" if config.num_seeds > 1 else "sweep",
        expected="one run where environments are in actors",
        found=f"{len(make_members(config))} at once",
        remedy="choose a JAX environment on the device, or train them one after the other",
    )


def _allow_many_files() -> None:
    """Every member keeps some open, and the usual limit is 1024 a process."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _directories(run_dir: pathlib.Path, members: Sequence[Member]) -> list[pathlib.Path]:
    return [run_dir / MEMBERS / member.name for member in members]


def _fit_in_memory(config: Config, types: TrainState, num_members: int) -> bool:
    """Whether checkpoints hold the replays; refuses what does not fit, all members together.

    Raises:
      UserError: naming the setting and the figures.
    """
    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_members, *leaf.shape), leaf.dtype), types)
    learner = stacked.learner
    # A device holds whole members, so that the learner's state is spread as its slots' is.
    nothing = learner._replace(**dict.fromkeys(learner._fields, ()))
    spread = TrainState(
        learner=nothing._replace(replay=learner.replay),
        actor=(learner._replace(replay=()), stacked.actor),
        episodes=stacked.episodes,
    )
    devices = jax.devices()[: config.devices.learner]
    try:
        check_memory(config, spread, devices, save_replay=config.checkpoint.replay is True)
        save_replay = saves_replay(config.checkpoint, stacked)
        check_memory(config, spread, devices, save_replay=save_replay)
    except UserError as error:
        raise UserError(
            error.subject,
            expected=error.expected,
            found=f"{error.found}, in all of the {num_members} members",
            remedy=f"{error.remedy}; or train fewer members at once",
        ) from error
    return save_replay


def _restore(
    state: TrainState, types: TrainState, all_saves: Sequence[Checkpointer], run_dir: pathlib.Path
) -> tuple[TrainState, list[int | None]]:
    """`state` with each member as in its newest intact checkpoint, and where those stand."""
    resumed_at: list[int | None] = [None] * len(all_saves)
    notes: list[str] = []
    for place, saves in enumerate(all_saves):
        if saves.steps():
            resumed_at[place], member = restore_train_state(saves, types, warn=notes.append)
            state = put_member(state, member, place)
    found = [step for step in resumed_at if step is not None]
    if found:
        say(f"resuming {run_dir} at {min(found):,} to {max(found):,} env_steps")
        note_resumed(sum(found), [*dict.fromkeys(notes)], num_members=len(found))
    for line in dict.fromkeys(notes):
        say(line)
    if len(found) < len(all_saves):
        missing = len(all_saves) - len(found)
        complain(f"{run_dir}: no checkpoint was finished of {missing} members; they start from the beginning")
    return state, resumed_at


def _loop(
    program: MembersProgram,
    state: TrainState,
    records: Sequence[RunRecord],
    progress: Progress,
    stop: StopRequest,
) -> list[bool]:
    """Trains until every member is at its total, or `stop`; whether each one's last save could be begun."""
    window, restart = program.window, np.zeros(len(records), bool)
    active = {place: record for place, record in enumerate(records) if not record.is_finished}
    begun = [True] * len(records)
    returns: dict[int, float] = {}
    seconds_per_update = DISPATCH_S
    stopping = bool(stop)
    while active and not stopping:
        ahead = min(record.updates_ahead() for record in active.values())
        num_updates = min(ahead, max(1, int(DISPATCH_S / seconds_per_update)))
        began = time.monotonic()
        state, window = program.dispatch(state, window, np.int32(num_updates), restart)
        counters = jax.device_get((state.learner.env_steps, state.learner.num_updates))
        now = time.monotonic()
        seconds_per_update = (now - began) / num_updates
        for place, record in active.items():
            record.env_steps = as_int(_at(counters[0], place))

        stopping = bool(stop)
        save_is_due = not stopping and any(record.save_is_due(now) for record in active.values())
        due = [
            place
            for place, record in active.items()
            if stopping or save_is_due or record.is_finished or record.line_is_due
        ]
        restart = np.isin(np.arange(len(records)), due)
        windows = jax.device_get(window) if due else None
        for place in due:
            env_steps, updates, own_window = _at((*counters, windows), place)
            row = metrics_row(env_steps, updates, own_window, program.metric_names)
            active[place].write(row, now)
            if "episode_return" in row:
                returns[place] = row["episode_return"]
        if due:
            env_steps = sum(record.env_steps for record in records)
            progress.update({"env_steps": env_steps, "episode_returns": list(returns.values())})
        for place, record in list(active.items()):
            if record.is_finished or stopping:
                begun[place] = record.save_last(take_member(state, place))
                del active[place]
            elif save_is_due:
                record.save(take_member(state, place))
    for place, record in active.items():  # asked to stop before it began
        begun[place] = record.save_last(take_member(state, place))
    return begun


def _at(tree: Any, place: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)


def _end(
    run_dir: pathlib.Path, members: Sequence[Member], records: Sequence[RunRecord], saved: Sequence[bool]
) -> int:
    """Says how it ended and draws the pictures; the exit code."""
    lost = [member.name for member, is_saved in zip(members, saved, strict=True) if not is_saved]
    ends = [record.env_steps for record in records]
    if lost:
        share = f"{len(lost)} of {len(members)} members"
        complain(f"{run_dir}: the last checkpoint of {share} could not be saved: {'; '.join(lost)}")
    else:
        say(f"saved {len(members)} members of {run_dir} at {min(ends):,} to {max(ends):,} env_steps")
    for directory in _directories(run_dir, members):
        draw(plot_learning_curve, directory, directory / "learning_curve.png")
    draw(write_summary, run_dir, run_dir / "summary.json")
    return 1 if lost else 0
