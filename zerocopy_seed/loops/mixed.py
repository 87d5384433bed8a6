"""Training from both at once: a part of each batch from environments on the device, the rest from actors.

Slots 0 to D-1 are on the device, D to D+A-1 in actors. V-trace, or the replay, cannot tell them apart.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents.vtrace import ACTORS, DEVICE
from zerocopy_seed.config import Config
from zerocopy_seed.config_sources import actors_environment, num_on_device
from zerocopy_seed.loops.environments import HostEnvironments, find_environment
from zerocopy_seed.loops.on_device import (
    Counts,
    Program,
    TrainState,
    Window,
    add_to_window,
    make_window,
    play,
)
from zerocopy_seed.loops.record import DISPATCH_S
from zerocopy_seed.loops.serving import compile_store, copy_acting, make_engine, serve_actors
from zerocopy_seed.loops.signals import StopRequest, hearing_signals
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.remote.specs import first_difference
from zerocopy_seed.types import Agent, Array, Trajectory, valid_transitions


def check_actors_environment(config: Config, environment: Vectorized) -> HostEnvironments | Vectorized:
    """What actors run, if an agent for `environment` can drive it.

    Raises:
      UserError: naming what differs.
    """
    theirs = find_environment(actors_environment(config))
    difference = first_difference(environment.spec, theirs.spec)
    if difference is not None:
        raise UserError(
            f"sources.actors_env = {config.sources.actors_env!r}",
            expected=f"{difference.field} {difference.expected}, as {config.env.name} has",
            found=difference.found,
        )
    return theirs


def make_mixed_update(
    agent: Agent, environment: Vectorized, unroll_length: int
) -> Callable[[TrainState, Trajectory], tuple[TrainState, dict[str, Array], Counts]]:
    """One unroll of the device's slots, and one `learn` from it and what has arrived; pure.

    It takes a TrainState and the actors' Trajectory [T, A], and returns the next TrainState, metrics, and the
    device's episodes.
    """

    def update(state: TrainState, arrived: Trajectory):
        state, here, counted = play(agent, environment, state, unroll_length)
        learner, metrics = agent.learn(state.learner, _beside(here, arrived))
        valid = [valid_transitions(part.timestep.step_type).sum() for part in (here, arrived)]
        share = valid[0] / jnp.maximum(valid[0] + valid[1], 1)
        metrics |= {f"{DEVICE}_share": share, f"{ACTORS}_share": 1.0 - share}
        return state._replace(learner=learner), metrics, counted

    return update


@contextlib.contextmanager
def mixed_program(
    config: Config,
    agent: Agent,
    environment: Vectorized,
    state: TrainState,
    run_dir: pathlib.Path,
    stop: StopRequest,
    *,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[Program]:
    """Trains from both, and serves the actors, from its beginning to its end.

    Where `sources.wait` is off, a batch takes the unrolls that actors have finished by then, and never waits.

    Args:
      config: the experiment.
      agent: learns from `config.env.num_envs` unrolls at once.
      environment: on the device.
      state: what the run begins with; of the device's slots.
      run_dir: keeps the run's identity and address.
      stop: ends a dispatch early.
      say: shows a line.
      warn: shows a line of something that is wrong.

    Raises:
      UserError: the address cannot be listened on.
    """
    first_slot = num_on_device(config)
    num_slots = config.env.num_envs - first_slot
    engine = make_engine(
        config, agent, environment.spec, state.learner, num_slots=num_slots, first_slot=first_slot
    )
    call_s = hearing_signals(engine.warm_up)
    update = make_mixed_update(agent, environment, config.agent.unroll_length)
    nothing = engine.empty_trajectory()
    learn, names = hearing_signals(lambda: _compile(agent, update, state, nothing))
    store = hearing_signals(lambda: compile_store(agent.store, state.learner, nothing))
    theirs = actors_environment(config)
    run = (theirs.name, theirs.settings, environment.spec)
    wait = config.sources.wait
    with serve_actors(config, engine, run, run_dir, call_s=call_s, say=say, warn=warn) as actors:

        def dispatch(state: TrainState, window: Window, num_updates: Any) -> tuple[TrainState, Window]:
            ends_at = time.monotonic() + DISPATCH_S
            actors.check()
            while num_updates > 0 and not (stop or actors.failure()) and (now := time.monotonic()) < ends_at:
                taken = actors.take(ends_at - now if wait else 0.0, partial=not wait)
                if taken is None and wait:
                    continue
                if taken is not None and not taken.is_due:
                    state = state._replace(learner=store(state.learner, taken.trajectory))
                    continue
                arrived = engine.empty_trajectory() if taken is None else taken.trajectory
                state, window, params = learn(state, window, arrived)
                jax.block_until_ready(params)  # else acting would wait for them, and actors with it
                engine.publish(params, np.zeros(0, np.int32) if taken is None else taken.slot)
                num_updates -= 1
            actors.is_run_over(as_int(state.learner.env_steps) >= config.total_env_steps)
            return state, window

        def figures(row: dict[str, Any]) -> dict[str, Any]:
            return _merge_episodes(row, actors.figures())

        yield Program(agent, dispatch, names, figures, actors.failure, actors.gauges)


def _compile(
    agent: Agent, update: Callable[..., Any], state: TrainState, arrived: Trajectory
) -> tuple[Any, tuple[str, ...]]:
    """`update`, which notes metrics and episodes and copies acting parameters; the metrics' names."""
    _, metrics, _ = jax.eval_shape(update, state, arrived)
    names = tuple(sorted(metrics))

    def learn(state: TrainState, window: Window, arrived: Trajectory):
        state, metrics, counted = update(state, arrived)
        return state, add_to_window(window, metrics, names, counted), copy_acting(agent, state.learner)

    lowered = jax.jit(learn, donate_argnums=(0, 1)).lower(state, make_window(len(names)), arrived)
    return lowered.compile(), names


def _beside(here: Trajectory, there: Trajectory) -> Trajectory:
    """The unrolls of both, [T, D + A]."""

    def concatenate(axis: int) -> Callable[[Array, Array], Array]:
        return lambda a, b: jnp.concatenate([a, b], axis)

    time_major = [(part.timestep, part.action, part.actor_output) for part in (here, there)]
    per_unroll = [(part.recurrent, part.slot, part.continues) for part in (here, there)]
    timestep, action, actor_output = jax.tree.map(concatenate(1), *time_major)
    recurrent, slot, continues = jax.tree.map(concatenate(0), *per_unroll)
    return Trajectory(timestep, action, actor_output, recurrent, slot, continues)


def _merge_episodes(row: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics with both sources' episode figures, each apart and all together."""
    merged = dict(row)
    for name in ("num_episodes", "episode_return", "episode_length"):
        for source, figures in ((DEVICE, row), (ACTORS, theirs)):
            if name in figures:
                merged[f"{source}_{name}"] = figures[name]
    merged |= {name: value for name, value in theirs.items() if not name.startswith(("num_ep", "episode_"))}
    merged["num_episodes"] = total = row["num_episodes"] + theirs["num_episodes"]
    for name in ("episode_return", "episode_length"):
        parts = [
            figures[name] * figures["num_episodes"] for figures in (row, theirs) if figures["num_episodes"]
        ]
        if parts:
            merged[name] = sum(parts) / total
    return merged
