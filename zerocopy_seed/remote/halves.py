"""An actor's environments as two halves, and their timesteps as messages. No JAX but for JAX environments."""

from __future__ import annotations

import contextlib
import json
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from zerocopy_envs import registry
from zerocopy_envs.errors import UserError, users_code
from zerocopy_envs.types import HostEnvironment, TimeStep
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.codec import encode_observations
from zerocopy_seed.remote.errors import ProtocolError
from zerocopy_seed.remote.wire_format import WireFormat, make_wire_format

_MOST_ENVS = 4096  # that a learner may ask for; this actor's own user may for more
_LONGEST_TEXT = 100  # of a setting that a learner may give


class EnvironmentFailed(Exception):
    """An environment's own code raised, or returned what its spec does not say; in one line."""


class Half:
    """Some of the actor's environments, which step together.

    Args:
      name: for messages.
      environment: them.
      first: number of the first of them among the actor's.
    """

    def __init__(self, name: str, environment: HostEnvironment, first: int):
        self._name = name
        self._environment = environment
        self._first = first
        self.spec = environment.spec
        self.num_envs = environment.num_envs
        self.wire: WireFormat = make_wire_format(environment.spec)
        self.slots = np.arange(self.num_envs)

    def reset(self, seeds: Sequence[int], request: int) -> bytes:
        """Starts every environment anew from the actor's `seeds`; the message to send."""
        with _environments_code(self._name, "reset to run"):
            own = [int(seed) for seed in seeds[self._first : self._first + self.num_envs]]
            return self._encode(request, np.arange(self.num_envs), self._environment.reset(own))

    def step(self, actions: np.ndarray, request: int) -> bytes:
        """Steps `slots` and returns the message about whichever are done then."""
        with _environments_code(self._name, "a step to run"):
            self._environment.send(actions)
            return self._encode(request, *self._environment.recv())

    def close(self) -> None:
        """Ends the environments."""
        self._environment.close()

    def _encode(self, request: int, slots: np.ndarray, timestep: TimeStep) -> bytes:
        self.slots = slots
        return encode_observations(self.wire, request, (slots + self._first).astype(np.int32), timestep)


class Halves:
    """The halves, kept over reconnections for as long as the learner wants the same."""

    def __init__(self) -> None:
        self.name = ""
        self._wanted: tuple[Any, ...] = ()
        self._halves: list[Half] = []

    def fit(self, run: bridge_pb2.Run, num_envs: int | None, env: str | None) -> list[Half]:
        """Makes what the run asks for, unless it is there.

        Raises:
          UserError: it cannot be made, or the learner asks for what only this actor's user may: a module, a
            path among the settings, very many environments.
        """
        name, settings = env or run.environment, run.settings if env in (None, run.environment) else ""
        if env is None and registry.names_a_module(name):
            raise UserError(
                f"environment {name!r}",
                expected="one of a registered suite, since the learner names it",
                found="a module, whose code would be run here",
                remedy=f"--env {shlex.quote(name)} if it is yours",
            )
        if num_envs is None and run.num_environments > _MOST_ENVS:
            raise UserError(
                "the learner's number of environments",
                expected=f"at most {_MOST_ENVS:,} where it alone says so",
                found=f"{run.num_environments:,}",
                remedy="--num-envs with as many as this machine bears",
            )
        if env is None:
            _check_settings(name, _read_settings(settings))
        total = num_envs or run.num_environments or 1
        wanted = (name, settings, total)
        if wanted != self._wanted:
            self.close()
            sizes = [total - total // 2, total // 2] if total > 1 else [1]
            for environment in _make_environments(name, _read_settings(settings), sizes):
                first = sum(half.num_envs for half in self._halves)
                self._halves.append(Half(name, environment, first))
            self.name, self._wanted = name, wanted
        return self._halves

    def close(self) -> None:
        """Ends them."""
        halves, self._halves, self._wanted = self._halves, [], ()
        for half in halves:
            with contextlib.suppress(Exception):  # what led here matters more
                half.close()


def _make_environments(name: str, settings: dict[str, Any], sizes: Sequence[int]) -> list[HostEnvironment]:
    made = registry.make(name, **settings)
    kind = registry.environment_kind(made, name)
    if kind == "spec":
        raise UserError(
            f"environment {name!r}",
            expected="an environment",
            found="the spec of one that steps elsewhere",
            remedy="its simulator joins through zerocopy_seed.remote.client.ActorClient",
        )
    if kind == "jax":
        from zerocopy_envs.host_adapter import HostedEnvironment
        from zerocopy_envs.wrappers import Vectorized

        shared = Vectorized(made)
        return [HostedEnvironment(shared, size) for size in sizes]
    if len(sizes) == 1 and made.num_envs == sizes[0]:
        return [made]
    made.close()
    environments = [registry.make(name, num_envs=size, **settings) for size in sizes]
    for environment, size in zip(environments, sizes, strict=True):
        if environment.num_envs != size:
            raise UserError(
                f"environment {name!r}: num_envs",
                expected=f"{size}, as its factory was asked for",
                found=str(environment.num_envs),
            )
    return environments


def _check_settings(name: str, settings: dict[str, Any]) -> None:
    """Refuses what could name a file here: a constructor may open whatever it is told to.

    Raises:
      UserError: naming the setting.
    """
    for key, value in settings.items():
        if not _is_plain(value):
            raise UserError(
                f"environment {name!r}: setting {key!r}",
                expected=f"numbers, booleans and words of at most {_LONGEST_TEXT} characters, no file's "
                "name, since the learner gives it",
                found=textwrap.shorten(repr(value), _LONGEST_TEXT),
                remedy=f"--env {shlex.quote(name)} if it is yours",
            )


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        is_short = len(value) <= _LONGEST_TEXT and value.isprintable()
        return is_short and not any(mark in value for mark in "/\\") and not value.startswith((".", "~"))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(inner) for pair in value.items() for inner in pair)
    return value is None or isinstance(value, bool | int | float)


def _read_settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text or "{}")
    except ValueError as error:
        raise ProtocolError("Run.settings", "a JSON object", repr(text)) from error
    if not isinstance(settings, dict):
        raise ProtocolError("Run.settings", "a JSON object", repr(text))
    return settings


@contextlib.contextmanager
def _environments_code(name: str, expected: str) -> Iterator[None]:
    try:
        with users_code(f"environment {name!r}", expected):
            yield
    except ProtocolError as error:
        raise EnvironmentFailed(f"environment {name!r}: {error}") from error
    except UserError as error:
        raise EnvironmentFailed(str(error)) from error
