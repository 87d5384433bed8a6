"""Adapter of those of pgx's games that one player plays (https://github.com/sotetsuk/pgx).

pgx ends a game by terminations alone; a limit of steps is the adapter's, and a truncation. In 2048 an illegal
move ends the game with a reward of -1, as pgx has it, and the observation comes with an `action_mask`.

Games of two and more players are not here: what one agent would learn depends on who plays the others.
"""

from __future__ import annotations

from typing import Any

import pgx  # pyright: ignore[reportMissingImports]

from zerocopy_envs.suite_adapter import AdaptedEnvironment, Moment, check_whole
from zerocopy_envs.types import Array, DiscreteAction, Key

_ENDLESS = -1


def make_environment(name: str, max_steps: int | None = None) -> AdaptedEnvironment:
    """The `pgx` suite's factory.

    Args:
      name: pgx's name, such as `minatar-breakout`.
      max_steps: steps until an episode is truncated; None for no limit.

    Raises:
      UserError: a limit below 1.
    """
    if max_steps is not None:
        check_whole(f"pgx:{name}: setting 'max_steps'", max_steps, 1)
    environment: Any = pgx.make(name)  # type: ignore[arg-type]
    masked = not name.startswith("minatar")
    limit = max_steps or _ENDLESS

    def observe(state: Any) -> Any:
        if masked:
            return {"board": state.observation, "action_mask": state.legal_action_mask}
        return state.observation

    def reset(key: Key) -> tuple[Any, Any]:
        state = environment.init(key)
        return state, observe(state)

    def step(key: Key, state: Any, action: Array) -> Moment:
        state = environment.step(state, action, key)
        return Moment(state, observe(state), state.rewards[0], state.terminated, state._step_count == limit)

    return AdaptedEnvironment(reset, step, DiscreteAction(environment.num_actions), max_steps)
