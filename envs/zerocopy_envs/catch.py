"""Catch, with the rules of bsuite's (arXiv:1908.03568): move the paddle under the falling ball."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import Array, ArraySpec, DiscreteAction, EnvironmentSpec, Key, StepType, TimeStep


class CatchState(NamedTuple):
    """Integers only, so that two backends that agree on the actions agree on every state.

    Attributes:
      ball: int32 [2], row and column.
      paddle: int32, column; the paddle's row is the last.
    """

    ball: Array
    paddle: Array


class Catch:
    """A ball falls one row a step from a random column; the paddle starts in the middle of the last row.

    Actions: 0 left, 1 stay, 2 right. The episode terminates when the ball is in the last row, after
    `rows - 1` steps, with reward 1 if the paddle is there and -1 if not. The observation is the board,
    float32 [rows, columns], 1 at the ball and at the paddle.

    Args:
      rows: height of the board, at least 2.
      columns: width of the board, at least 1.
    """

    def __init__(self, rows: int = 10, columns: int = 5):
        for name, value, least in (("rows", rows, 2), ("columns", columns, 1)):
            if value < least:
                raise UserError(f"zerocopy:Catch: setting {name!r}", expected=f">= {least}", found=str(value))
        self.rows, self.columns = rows, columns
        self.spec = EnvironmentSpec(
            observation=ArraySpec((rows, columns), np.dtype(np.float32), 0.0, 1.0),
            action=DiscreteAction(3),
            max_episode_steps=rows - 1,
        )

    def reset(self, key: Key) -> tuple[CatchState, TimeStep]:
        """A new episode; the key chooses the ball's column."""
        column = jax.random.randint(key, (), 0, self.columns, jnp.int32)
        state = CatchState(jnp.stack([jnp.int32(0), column]), jnp.int32(self.columns // 2))
        return state, self._timestep(state, jnp.int8(StepType.FIRST), jnp.float32(0), jnp.float32(1))

    def step(self, state: CatchState, action: Array) -> tuple[CatchState, TimeStep]:
        """Moves the paddle, then the ball."""
        paddle = jnp.clip(state.paddle + jnp.asarray(action, jnp.int32) - 1, 0, self.columns - 1)
        state = CatchState(state.ball + jnp.array([1, 0], jnp.int32), paddle)
        ended = state.ball[0] >= self.rows - 1
        caught = jnp.where(state.ball[1] == paddle, jnp.float32(1), jnp.float32(-1))
        step_type = jnp.where(ended, jnp.int8(StepType.LAST), jnp.int8(StepType.MID))
        reward = jnp.where(ended, caught, jnp.float32(0))
        return state, self._timestep(
            state, step_type, reward, jnp.where(ended, jnp.float32(0), jnp.float32(1))
        )

    def _timestep(self, state: CatchState, step_type: Array, reward: Array, discount: Array) -> TimeStep:
        # Comparing index grids instead of scattering: a scatter is a serial loop on the CPU.
        row = jnp.arange(self.rows, dtype=jnp.int32)[:, None]
        column = jnp.arange(self.columns, dtype=jnp.int32)[None, :]
        ball = (row == state.ball[0]) & (column == state.ball[1])
        paddle = (row == self.rows - 1) & (column == state.paddle)
        return TimeStep(step_type, reward, discount, (ball | paddle).astype(jnp.float32))


def make_environment(name: str, *, rows: int = 10, columns: int = 5) -> Any:
    """The `zerocopy` suite's factory; `name` is `Catch`."""
    del name
    return Catch(rows=rows, columns=columns)
