"""The `actor` command: steps environments here, with actions from a learner elsewhere. Imports no JAX.

An actor holds its environments as two halves, so that one steps while the other waits for its actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from zerocopy_envs import registry
from zerocopy_envs.errors import UserError, users_code
from zerocopy_envs.types import HostEnvironment, TimeStep
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.addresses import parse_address
from zerocopy_seed.remote.codec import (
    OBSERVATIONS_GOODBYE,
    WireFormat,
    decode_actions,
    encode_observations,
    make_wire_format,
    request_of,
)
from zerocopy_seed.remote.errors import ProtocolError, Unavailable
from zerocopy_seed.remote.retry import Retry
from zerocopy_seed.remote.specs import spec_to_message
from zerocopy_seed.remote.transport import SOFTWARE, VERSION, GrpcTransport, Stream, Transport

RECONNECT_S = 600.0
_LEAVE_WITHIN_S = 5.0


def _print(line: str) -> None:
    print(line, flush=True)


class EnvironmentFailed(Exception):
    """An environment's own code raised, or returned what its spec does not say; in one line."""


class Actor:
    """Takes part in runs until it is told to leave, or the run ends.

    Args:
      make_transport: opens a way to the learner; called anew after each failure.
      address: of the learner, for messages.
      num_envs: how many environments; None lets the learner say.
      env: environment to run in place of the learner's, without its settings.
      reconnect_s: how long to try to reach the learner.
      report: takes lines about progress.
    """

    def __init__(
        self,
        make_transport: Callable[[], Transport],
        address: str,
        *,
        num_envs: int | None = None,
        env: str | None = None,
        reconnect_s: float = RECONNECT_S,
        report: Callable[[str], Any] = _print,
    ):
        self._make_transport = make_transport
        self._address = address
        self._num_envs = num_envs
        self._env = env
        self._retry = Retry(reconnect_s)
        self._report = report
        self._environments = _Environments()
        self._leaving = asyncio.Event()
        self._task: asyncio.Task | None = None
        self._stepping = False
        self._reading: Stream | None = None
        self._farewell: asyncio.Task | None = None

    async def run(self) -> None:
        """Returns after a goodbye, the learner's or this actor's.

        Raises:
          UserError: the learner refuses, or the environment cannot be made.
          EnvironmentFailed: it could be made and then failed.
          Unavailable: the learner has been out of reach for too long.
        """
        self._task = asyncio.current_task()
        try:
            while not self._leaving.is_set():
                try:
                    return await self._take_part()
                except Unavailable as error:
                    await self._wait_to_retry(error)
        except asyncio.CancelledError:
            if not self._leaving.is_set():
                raise
        finally:
            self._environments.close()

    def leave(self) -> None:
        """Says goodbye as soon as the environments' current step is done. To be called in the event loop."""
        if self._leaving.is_set():
            return
        self._leaving.set()
        if not self._stepping:
            self._cancel()
            return
        asyncio.get_running_loop().call_later(_LEAVE_WITHIN_S, self._cancel)
        if self._reading is not None:
            self._farewell = asyncio.ensure_future(_say_goodbye(self._reading))

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _wait_to_retry(self, error: Unavailable) -> None:
        first = not self._retry.failing
        delay_s = self._retry.failed()
        if delay_s is None:
            raise Unavailable(f"nothing to do at {self._address}: {error}") from error
        if first:
            self._report(f"nothing to do yet at {self._address}: {error}; trying again")
        await asyncio.sleep(delay_s)

    async def _take_part(self) -> None:
        transport = self._make_transport()
        try:
            run = await transport.describe()
            halves = self._environments.fit(run, self._num_envs, self._env)
            num_envs = sum(half.num_envs for half in halves)
            request = bridge_pb2.JoinRequest(
                version=VERSION,
                software=SOFTWARE,
                run_id=run.run_id,
                spec=spec_to_message(halves[0].spec),
                num_environments=num_envs,
            )
            session = await transport.join(request)
            if len(session.seeds) != num_envs:
                raise ProtocolError("Session.seeds", f"{num_envs} of them", str(len(session.seeds)))
            stream = transport.open(session.id)
            self._report(
                f"{self._environments.name}: {num_envs} environment{'s' * (num_envs > 1)} "
                f"for the learner at {self._address}"
            )
            self._stepping = True
            await self._step(stream, halves, session.seeds)
        finally:
            self._stepping = False
            await transport.close()

    async def _step(self, stream: Stream, halves: Sequence[_Half], seeds: Sequence[int]) -> None:
        """Steps until somebody says goodbye."""
        waiting: dict[int, _Half] = {}
        num_requests = 0
        for half in halves:
            num_requests += 1
            waiting[num_requests] = half
            await stream.write(half.reset(seeds, num_requests))
        while (data := await self._read(stream)) is not None:
            half = waiting.pop(request_of(data), None)
            actions = decode_actions(halves[0].wire, data, len(half.slots) if half else 0)
            if actions.goodbye:
                self._report(f"the learner at {self._address} has ended the run")
                return
            if half is None:
                raise ProtocolError("Actions.request", "one that has no answer yet", str(actions.request))
            self._retry.succeeded()
            num_requests += 1
            waiting[num_requests] = half
            await stream.write(half.step(actions.action, num_requests))

    async def _read(self, stream: Stream) -> bytes | None:
        """The next message, or None after a goodbye of ours."""
        if not self._leaving.is_set():
            self._reading = stream
            try:
                data = await stream.read()
            finally:
                self._reading = None
            if not self._leaving.is_set():
                if data is None:
                    raise Unavailable("it ended the stream")
                return data
        if self._farewell is None:
            self._farewell = asyncio.ensure_future(_say_goodbye(stream))
        await self._farewell
        with contextlib.suppress(Unavailable):
            while await stream.read() is not None:
                pass
        return None


class _Half:
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


class _Environments:
    """The halves, kept over reconnections for as long as the learner wants the same."""

    def __init__(self) -> None:
        self.name = ""
        self._wanted: tuple[Any, ...] = ()
        self._halves: list[_Half] = []

    def fit(self, run: bridge_pb2.Run, num_envs: int | None, env: str | None) -> list[_Half]:
        """Makes what the run asks for, unless it is there."""
        name, settings = (env, "") if env else (run.environment, run.settings)
        total = num_envs or run.num_environments or 1
        wanted = (name, settings, total)
        if wanted != self._wanted:
            self.close()
            sizes = [total - total // 2, total // 2] if total > 1 else [1]
            for environment in _make_environments(name, _read_settings(settings), sizes):
                first = sum(half.num_envs for half in self._halves)
                self._halves.append(_Half(name, environment, first))
            self.name, self._wanted = name, wanted
        return self._halves

    def close(self) -> None:
        """Ends them."""
        halves, self._halves, self._wanted = self._halves, [], ()
        for half in halves:
            with contextlib.suppress(Exception):  # what led here matters more
                half.close()


def run_actor(
    address: str,
    *,
    num_envs: int | None = None,
    env: str | None = None,
    reconnect_s: float = RECONNECT_S,
    parent_pid: int | None = None,
) -> int:
    """Runs an actor in this process until a goodbye, SIGINT or SIGTERM.

    Args:
      address: of the learner: `host:port` or `unix:/path`.
      num_envs: how many environments; None lets the learner say.
      env: environment to run in place of the learner's.
      reconnect_s: how long to try to reach the learner, at the start and after a loss; `inf` for ever.
      parent_pid: process whose end ends this one at once, whatever it is doing.

    Returns:
      The exit code: 0 after a goodbye, 1 if the environment failed or no learner answered.

    Raises:
      UserError: a malformed address, a refusal, an environment that cannot be made.
    """
    if parent_pid is not None:
        threading.Thread(target=_end_with, args=(parent_pid,), daemon=True).start()
    where = parse_address(address).text
    try:
        asyncio.run(_run_until_signal(where, num_envs, env, reconnect_s))
    except (EnvironmentFailed, Unavailable) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


async def _run_until_signal(address: str, num_envs: int | None, env: str | None, reconnect_s: float) -> None:
    actor = Actor(
        lambda: GrpcTransport(address), address, num_envs=num_envs, env=env, reconnect_s=reconnect_s
    )
    loop = asyncio.get_running_loop()
    asked: list[int] = []

    def handle(number: int, _: object) -> None:
        if asked:
            os._exit(128 + number)  # an environment's step may never return
        asked.append(number)
        loop.call_soon_threadsafe(actor.leave)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        await actor.run()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


async def _say_goodbye(stream: Stream) -> None:
    with contextlib.suppress(Unavailable):
        await stream.write(OBSERVATIONS_GOODBYE)
        await stream.finish()


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


def _end_with(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(0.5)
    os._exit(1)
