"""Training from a record: its rounds in order, again and again, through `store` and `learn` of the agent."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.config import Config
from zerocopy_seed.config_checks import recorded_dir
from zerocopy_seed.experience import Place, RecordReader, check_fits
from zerocopy_seed.experience.index import as_json
from zerocopy_seed.keys import Stream, stream_key
from zerocopy_seed.loops.console import say
from zerocopy_seed.loops.on_device import Program, TrainState, Window, add_to_window, make_window
from zerocopy_seed.loops.recording import make_description, trajectory_types
from zerocopy_seed.loops.serving import compile_store
from zerocopy_seed.loops.signals import hearing_signals
from zerocopy_seed.types import Agent, Array, LearnerState, Trajectory


class SavedPlace(NamedTuple):
    """The `Place` in a record, as a checkpoint holds it: two int32 scalars."""

    epoch: Array
    round: Array


def open_record(config: Config) -> RecordReader:
    """The record that `config.source` names, verified; whether the network fits it is not known yet.

    Raises:
      UserError: no record, a damaged one, or one of another environment, agent, or size of unrolls.
    """
    reader = RecordReader(pathlib.Path(recorded_dir(config.source)))
    recorded = reader.index.description
    wanted = dataclasses.replace(
        recorded,
        environment=config.env.name,
        settings=as_json(config.env.settings),
        agent=config.agent.name,
        num_envs=config.env.num_envs,
        unroll_length=config.agent.unroll_length,
    )
    check_fits(f"record {reader.directory}", wanted, recorded)
    return reader


def check_record(config: Config, agent: Agent, spec: EnvironmentSpec, reader: RecordReader) -> None:
    """Refuses a record whose arrays are not those that `agent`, in environments of `spec`, stores.

    Raises:
      UserError: naming the array.
    """
    description = make_description(config, agent, spec)
    check_fits(f"record {reader.directory}", description, reader.index.description)


def init_from_record(agent: Agent, seed: int) -> TrainState:
    """The state of a run that has not begun: a learner, and its place in the record."""
    place = SavedPlace(jnp.int32(0), jnp.int32(0))
    return TrainState(agent.init(stream_key(seed, Stream.LEARNER)), actor=place, episodes=())


@contextlib.contextmanager
def recorded_program(
    config: Config, agent: Agent, reader: RecordReader, state: TrainState
) -> Iterator[Program]:
    """Learns from a record, from where `state` stands in it.

    Args:
      config: the experiment.
      agent: has a replay.
      reader: of a record that fits it.
      state: what the run begins with.

    Raises:
      UserError: the record no longer has the round at which the run stands.
    """
    description = reader.index.description
    types = trajectory_types(config, agent, description.spec)
    leaf_names, treedef = tuple(description.leaves), jax.tree.structure(types)
    place, failed = _place(state), ""
    with reader:
        reader.read(place)
        say(f"learning from {reader.index.num_rounds:,} unrolls of every slot in {reader.directory}")
        learn, store, names = hearing_signals(lambda: _compile(agent, state.learner, types))

        def dispatch(state: TrainState, window: Window, num_updates: Any) -> tuple[TrainState, Window]:
            nonlocal place, failed
            learner, place = state.learner, _place(state)
            while num_updates > 0 and not failed:
                try:
                    round = reader.read(place)
                except UserError as error:  # what was learned so far is worth a checkpoint
                    failed = str(error)
                    break
                trajectory = jax.tree.unflatten(treedef, [round.arrays[name] for name in leaf_names])
                if round.is_due:
                    learner, window = learn(learner, window, trajectory)
                    num_updates -= 1
                else:
                    learner = store(learner, trajectory)
                place = round.next
            saved_place = SavedPlace(jnp.int32(place.epoch), jnp.int32(place.round))
            return state._replace(learner=learner, actor=saved_place), window

        def figures(row: dict[str, Any]) -> dict[str, Any]:
            return row | {"record_epochs": place.epoch + place.round / reader.index.num_rounds}

        yield Program(agent, dispatch, names, figures, lambda: failed)


def with_padding(trajectory: Trajectory) -> Trajectory:
    """A recorded trajectory with discount 1 in padding; older records have 0 there, the mark of stand-ins."""
    is_padding = trajectory.slot == len(trajectory.slot)
    discount = jnp.where(is_padding[None], 1.0, trajectory.timestep.discount)
    return trajectory._replace(timestep=trajectory.timestep._replace(discount=discount))


def _place(state: TrainState) -> Place:
    saved: Any = state.actor
    return Place(int(saved.epoch), int(saved.round))


def _compile(agent: Agent, learner: LearnerState, trajectory: Trajectory) -> tuple[Any, Any, tuple[str, ...]]:
    """`learn`, which notes its metrics in a window; `store`; the metrics' names."""
    _, metrics = jax.eval_shape(agent.learn, learner, trajectory)
    names = tuple(sorted(metrics))

    def learn(learner: LearnerState, window: Window, trajectory: Trajectory) -> tuple[LearnerState, Window]:
        learner, metrics = agent.learn(learner, with_padding(trajectory))
        return learner, add_to_window(window, metrics, names)

    learning = jax.jit(learn, donate_argnums=(0, 1)).lower(learner, make_window(len(names)), trajectory)
    return learning.compile(), compile_store(agent.store, learner, trajectory), names
