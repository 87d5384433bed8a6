"""Endless streams of rows, one per slot, in which everything follows from the slot and the time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.types import StepType, TimeStep
from zerocopy_seed.recurrent import reset_recurrent, stack_frames
from zerocopy_seed.types import RecurrentState, Trajectory

NUM_SLOTS = 4
NUM_TIMES = 4000


class Streams:
    """Rows of NUM_SLOTS slots and NUM_TIMES times, [time, slot]; episodes last 1 to 9 steps.

    Attributes:
      timestep, last_action, actor_output: a row's.
      core: what a core that counts its steps since the episode's FIRST has counted when it enters a row.
      stacked: what an agent sees, stacked step by step.
    """

    def __init__(self, context: int, with_mask: bool):
        rng = np.random.default_rng(7)
        slot = np.broadcast_to(np.arange(NUM_SLOTS), (NUM_TIMES, NUM_SLOTS))
        time = np.broadcast_to(np.arange(NUM_TIMES)[:, None], slot.shape)
        step_type = np.full(slot.shape, StepType.MID, np.int8)
        for column in step_type.T:
            starts = np.cumsum(rng.integers(2, 10, NUM_TIMES))
            starts = np.concatenate([[0], starts[starts < NUM_TIMES]])
            column[starts[1:] - 1] = StepType.LAST
            column[starts] = StepType.FIRST
        code = (1 + 10_000 * slot + time).astype(np.float32)
        where = np.stack([slot, time], -1).astype(np.int32) + 1  # never 0, which stands for "no frame"
        observation = where
        if with_mask:
            observation = {"where": where, "clock": code, "action_mask": rng.random((*slot.shape, 3)) < 0.5}
        self.first = step_type == StepType.FIRST
        self.timestep = TimeStep(step_type, code + 0.25, code + 0.5, observation)
        self.last_action = (7 * time + slot).astype(np.int32)
        self.actor_output = (code + 0.125, -code)
        self.core = np.zeros(slot.shape, np.int32)
        count = np.zeros(NUM_SLOTS, np.int32)
        for row, first in enumerate(self.first):
            self.core[row] = count
            count = np.where(first, 0, count) + 1
        self.stacked = self._stacked(context) if context else None

    def _stacked(self, context: int):
        observation = self.timestep.observation
        rest = observation
        if isinstance(observation, dict):
            rest = {name: leaf for name, leaf in observation.items() if name != "action_mask"}
        frames = jax.tree.map(lambda x: jnp.zeros((NUM_SLOTS, context, *x.shape[2:]), x.dtype), rest)

        def step(frames, row):
            observation, first = row
            state = reset_recurrent(RecurrentState((), frames, jnp.zeros([NUM_SLOTS], jnp.int32)), first)
            stacked, frames = stack_frames(state.frames, observation)
            return frames, stacked

        return jax.tree.map(np.asarray, jax.lax.scan(step, frames, (observation, self.first))[1])

    def at(self, tree, time, slot):
        """Leaves at times and slots of one shape."""
        return jax.tree.map(lambda x: x[time, slot], tree)

    def unrolls(self, slot, begin, length, continues) -> Trajectory:
        """Unrolls of `slot` [B] from the times `begin` [B]; a slot past the last has another's rows."""
        column = np.minimum(slot, NUM_SLOTS - 1)
        rows = begin + np.arange(length + 1)[:, None]
        columns = np.broadcast_to(column, rows.shape)
        return Trajectory(
            timestep=self.at(self.timestep, rows, columns),
            action=self.last_action[rows[1:], columns[1:]],
            actor_output=self.at(self.actor_output, rows[:-1], columns[:-1]),
            recurrent=RecurrentState(self.core[begin, column], (), self.last_action[begin, column]),
            slot=slot.astype(np.int32),
            continues=np.asarray(continues, bool),
        )
