"""Keeping what a run plays: its trajectories, from the device into a record."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import EnvironmentSpec, TimeStep
from zerocopy_seed.config import Config, RecordConfig
from zerocopy_seed.experience import Description, RecordWriter, check_fits, open_index
from zerocopy_seed.experience.index import as_json, plain_spec
from zerocopy_seed.keys import Stream, slot_keys, stream_key
from zerocopy_seed.leaves import describe, named_leaves
from zerocopy_seed.loops.console import complain, say
from zerocopy_seed.loops.on_device import TrainState, Window
from zerocopy_seed.loops.run_lock import lock_directory
from zerocopy_seed.types import Agent, Mode, Trajectory

_CHUNK_BYTES = 2**24
_MAX_CHUNK = 64


def trajectory_types(config: Config, agent: Agent, spec: EnvironmentSpec) -> Trajectory:
    """Types of the trajectory that `agent.learn` receives (traced, not run)."""
    num_envs, length = config.env.num_envs, config.agent.unroll_length

    def rows(number: int, tree: Any) -> Any:
        def row(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((number, *leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))

        return jax.tree.map(row, tree)

    timestep = TimeStep(
        step_type=jax.ShapeDtypeStruct((num_envs,), jnp.int8),
        reward=jax.ShapeDtypeStruct((num_envs,), jnp.float32),
        discount=jax.ShapeDtypeStruct((num_envs,), jnp.float32),
        observation=rows(num_envs, spec.observation),
    )

    def act(timestep: TimeStep):
        slots = jnp.arange(num_envs, dtype=jnp.int32)
        state = agent.initial_state(slot_keys(config.seed, Stream.AGENT, slots), slots)
        params = agent.acting(agent.init(stream_key(config.seed, Stream.LEARNER)))
        action, actor_output, _ = agent.act(params, state, timestep, Mode.TRAIN)
        return action, actor_output, state.recurrent

    action, actor_output, recurrent = jax.eval_shape(act, timestep)
    return Trajectory(
        timestep=rows(length + 1, timestep),
        action=rows(length, action),
        actor_output=rows(length, actor_output),
        recurrent=recurrent,
        slot=jax.ShapeDtypeStruct((num_envs,), jnp.int32),
        continues=jax.ShapeDtypeStruct((num_envs,), jnp.bool_),
    )


def make_description(config: Config, agent: Agent, spec: EnvironmentSpec) -> Description:
    """What a record of the run consists of."""
    spec = plain_spec(spec)
    types = trajectory_types(config, agent, spec)
    return Description(
        environment=config.env.name,
        settings=as_json(config.env.settings),
        spec=spec,
        agent=config.agent.name,
        num_envs=config.env.num_envs,
        unroll_length=config.agent.unroll_length,
        leaves={name: describe(leaf) for name, leaf in named_leaves(types).items()},
    )


def check_recording(config: RecordConfig, description: Description) -> None:
    """Refuses a directory that what a run plays cannot be appended to, before anything is written.

    Raises:
      UserError: something else is there, or a record that does not fit.
    """
    if index := open_index(pathlib.Path(config.dir)):
        check_fits(config.dir, description, index.description)


@dataclasses.dataclass(frozen=True)
class Recording:
    """Takes a run's trajectories into a record (`open_recording`)."""

    writer: RecordWriter
    description: Description

    @property
    def chunk(self) -> int:
        """How many updates' trajectories leave the device at once, at most."""
        return max(1, min(_MAX_CHUNK, _CHUNK_BYTES // self.description.round_bytes))

    def add(self, trajectories: Trajectory, num: int, *, is_due: bool = True) -> None:
        """Appends trajectories; waits while the disk is behind.

        Args:
          trajectories: [at least num, ...]; nobody may write into them afterwards, nor donate them.
          num: how many of them.
          is_due: whether an update followed each.
        """
        # Observations of NamedTuples have other names in the record, and the same order.
        leaves = dict(zip(self.description.leaves, jax.tree.leaves(trajectories), strict=True))
        self.writer.add(leaves, np.full(num, is_due))

    def recorded(self, dispatch: Callable[..., Any]) -> Callable[..., tuple[TrainState, Window]]:
        """A program's `dispatch`, from one that also gives trajectories and makes at most `chunk` updates."""

        def dispatch_and_add(
            state: TrainState, window: Window, num_updates: Any
        ) -> tuple[TrainState, Window]:
            num_updates = np.int32(min(num_updates, self.chunk))
            state, window, trajectories = dispatch(state, window, num_updates)
            self.add(trajectories, int(num_updates))
            return state, window

        return dispatch_and_add


@contextlib.contextmanager
def open_recording(config: RecordConfig, description: Description) -> Iterator[Recording]:
    """Appends to the record in `config.dir` from its beginning to its end, and nobody else does.

    Raises:
      UserError: as `check_recording`; the directory cannot be made, or another process records there.
    """
    directory, subject = pathlib.Path(config.dir), f"record.dir = {config.dir!r}"
    with contextlib.ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_directory(directory, subject, "records", "recording"))
            writer = stack.enter_context(
                RecordWriter(
                    directory,
                    description,
                    max_bytes=1e9 * config.max_gb,
                    shard_bytes=1e6 * config.shard_mb,
                    warn=complain,
                )
            )
        except OSError as error:
            raise UserError(
                subject,
                expected="a directory that can be made and written",
                found=error.strerror or str(error),
            ) from error
        if writer.num_rounds:
            say(f"recording behind the {writer.num_rounds:,} unrolls of every slot that are in {config.dir}")
        yield Recording(writer, description)
