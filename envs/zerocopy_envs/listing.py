"""One row per registered environment, for `zerocopy-seed envs`. Making one imports what it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from zerocopy_envs.errors import UserError
from zerocopy_envs.registry import environment_kind, environment_names, find_suite, make, suite_names
from zerocopy_envs.types import ActionSpec, BoundedAction, DiscreteAction


@dataclasses.dataclass(frozen=True)
class EnvironmentRow:
    """What a listing shows of an environment.

    Attributes:
      name: `suite:name`; `suite:*` where a whole suite cannot be made.
      observation: shapes and dtypes, such as `float32[10, 10, 4]`; empty with a problem.
      action: such as `discrete(3)` or `bounded[2]`; empty with a problem.
      max_episode_steps: None if unlimited or unknown.
      problem: one line that says why there are no shapes, and the command that mends it; else empty.
      note: what its suite says of it besides; mostly empty.
    """

    name: str
    observation: str = ""
    action: str = ""
    max_episode_steps: int | None = None
    problem: str = ""
    note: str = ""


def describe_environments() -> Iterator[EnvironmentRow]:
    """All registered environments, suite by suite; one row for a suite that does not import."""
    for suite in suite_names():
        try:
            names = environment_names(suite)
        except UserError as error:
            yield EnvironmentRow(f"{suite}:*", problem=str(error))
            continue
        notes = {f"{suite}:{name}": note for name, note in find_suite(suite).notes.items()}
        for name in names:
            try:
                environment = make(name)
                kind = environment_kind(environment)
                spec = environment if kind == "spec" else environment.spec
                if kind == "host":
                    environment.close()
            except UserError as error:
                if isinstance(error.__cause__, ImportError):
                    yield EnvironmentRow(f"{suite}:*", problem=error.remedy or str(error))
                    break
                yield EnvironmentRow(name, problem=str(error))
            except Exception as error:  # another package's environment must not end the listing
                yield EnvironmentRow(name, problem=f"{type(error).__name__}: {error}".splitlines()[0])
            else:
                yield EnvironmentRow(
                    name,
                    describe_observation(spec.observation),
                    describe_action(spec.action),
                    spec.max_episode_steps,
                    note=notes.get(name, ""),
                )
        else:
            yield from (EnvironmentRow(name, problem=notes[name]) for name in notes if name not in names)


def describe_observation(observation: Any) -> str:
    """`float32[4]`, or a dict or tuple of such."""
    if isinstance(observation, dict):
        return "{" + ", ".join(f"{k}: {describe_observation(v)}" for k, v in observation.items()) + "}"
    if isinstance(observation, tuple | list):
        return "(" + ", ".join(describe_observation(item) for item in observation) + ")"
    return f"{observation.dtype}{list(observation.shape)}"


def describe_action(action: ActionSpec) -> str:
    """`discrete(3)`, `multi_discrete(3, 2)` or `bounded[2]`."""
    if isinstance(action, DiscreteAction):
        return f"discrete({action.num_values})"
    if isinstance(action, BoundedAction):
        return f"bounded{list(action.shape)}"
    return f"multi_discrete({', '.join(map(str, action.num_values))})"
