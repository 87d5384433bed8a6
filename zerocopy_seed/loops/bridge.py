"""Training from actors: what they send, and the learner's updates, as one program."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed import hosts
from zerocopy_seed.agents import make_agent
from zerocopy_seed.config import Config
from zerocopy_seed.keys import Stream, stream_key
from zerocopy_seed.loops.devices import Placement
from zerocopy_seed.loops.layout import DATA_AXIS, LEARNER_SPECS, TRAJECTORY_SPECS, over_mesh, shardings
from zerocopy_seed.loops.on_device import Program, TrainState, Window, add_to_window, make_window
from zerocopy_seed.loops.record import DISPATCH_S
from zerocopy_seed.loops.recording import Recording
from zerocopy_seed.loops.rounds import Rounds, figures_of_all
from zerocopy_seed.loops.serving import compile_store, copy_acting, make_engine, serve_actors
from zerocopy_seed.loops.signals import StopRequest, hearing_signals
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.types import Agent, LearnerState, Trajectory


def init_learner(agent: Agent, seed: int) -> TrainState:
    """The state of a run that has not begun; of its actors nothing is kept."""
    return TrainState(agent.init(stream_key(seed, Stream.LEARNER)), actor=(), episodes=())


@contextlib.contextmanager
def bridge_program(
    config: Config,
    agent: Agent,
    spec: EnvironmentSpec,
    state: TrainState,
    run_dir: pathlib.Path,
    stop: StopRequest,
    recording: Recording | None,
    placement: Placement,
    *,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[Program]:
    """Trains from actors alone, and serves them, local ones among them, from its beginning to its end.

    Args:
      config: the experiment.
      agent: learns from `config.env.num_envs` unrolls at once.
      spec: of the environments.
      state: what the run begins with, laid out over the devices that learn.
      run_dir: keeps the run's identity and address, for resumed runs.
      stop: ends a dispatch early.
      recording: keeps what is learned from.
      placement: where it learns and acts.
      say: shows a line.
      warn: shows a line of something that is wrong.

    Raises:
      UserError: the address cannot be listened on.
    """
    num_slots = config.env.num_envs // hosts.count()
    engine = make_engine(
        config,
        agent,
        spec,
        state.learner,
        num_slots=num_slots,
        first_slot=hosts.index() * num_slots,
        to_inference=placement.to_inference,
    )
    call_s = hearing_signals(engine.warm_up)
    nothing = placement.to_learner(engine.empty_trajectory())
    learn, store, names = hearing_signals(lambda: _compile(config, agent, spec, placement, state, nothing))
    run = (config.env.name, config.env.settings, spec)
    with serve_actors(config, engine, run, run_dir, call_s=call_s, say=say, warn=warn) as actors:
        rounds = Rounds(engine, actors)

        def dispatch(state: TrainState, window: Window, num_updates: Any) -> tuple[TrainState, Window]:
            learner, ends_at = state.learner, time.monotonic() + DISPATCH_S
            actors.check()
            while num_updates > 0:
                taken = rounds.take(ends_at, lambda: bool(stop or actors.failure()))
                if taken is None:
                    break
                if recording is not None:  # a copy, since the next trajectory is written over it
                    played = jax.tree.map(lambda leaf: np.array(leaf)[None], taken.trajectory)
                    recording.add(played, 1, is_due=taken.is_due)
                trajectory = placement.to_learner(taken.trajectory)
                if not taken.is_due:
                    learner = store(learner, trajectory)
                    continue
                learner, window, params = learn(learner, window, trajectory)
                params = placement.to_inference(params)
                jax.block_until_ready(params)  # else acting would wait for them, and actors with it
                engine.publish(params, taken.slot)
                num_updates -= 1
            actors.is_run_over(as_int(learner.env_steps) >= config.total_env_steps)
            return state._replace(learner=learner), window

        def figures(row: dict[str, Any]) -> dict[str, Any]:
            return row | figures_of_all(hosts.all_as_json(actors.figures()))

        yield Program(agent, dispatch, names, figures, actors.failure, actors.gauges)


def _compile(
    config: Config,
    agent: Agent,
    spec: EnvironmentSpec,
    placement: Placement,
    state: TrainState,
    trajectory: Trajectory,
) -> tuple[Any, Any, tuple[str, ...]]:
    """`learn`, which notes its metrics and copies acting parameters; `store`; the metrics' names."""
    _, metrics = jax.eval_shape(agent.learn, state.learner, trajectory)
    names = tuple(sorted(metrics))
    mesh, num_slots = placement.mesh, config.env.num_envs
    if mesh is not None:
        agent = make_agent(config.agent, config.network, spec, num_slots=num_slots, axis_name=DATA_AXIS)

    def learn(learner: LearnerState, window: Window, trajectory: Trajectory):
        learner, metrics = agent.learn(learner, trajectory)
        return learner, add_to_window(window, metrics, names), copy_acting(agent, learner)

    learning, store, outputs = learn, agent.store, None
    if mesh is not None:
        everywhere = NamedSharding(mesh, P())
        learning = over_mesh(learn, mesh, (LEARNER_SPECS, P(), TRAJECTORY_SPECS), (LEARNER_SPECS, P(), P()))
        outputs = shardings(LEARNER_SPECS, state.learner, mesh), everywhere, everywhere
        if store is not None:
            store = over_mesh(store, mesh, (LEARNER_SPECS, TRAJECTORY_SPECS), LEARNER_SPECS)
    lowered = jax.jit(learning, donate_argnums=(0, 1), out_shardings=outputs).lower(
        state.learner, make_window(len(names)), trajectory
    )
    return lowered.compile(), compile_store(store, state.learner, trajectory), names
