"""The `actor` command: steps environments here, with actions from a learner elsewhere. Imports no JAX.

An actor holds its environments as two halves, so that one steps while the other waits for its actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from zerocopy_seed.remote.access import NO_CREDENTIALS, Credentials
from zerocopy_seed.remote.addresses import parse_address
from zerocopy_seed.remote.codec import OBSERVATIONS_GOODBYE, decode_actions, request_of
from zerocopy_seed.remote.diagnosis import Diagnosis
from zerocopy_seed.remote.errors import ProtocolError, Unavailable
from zerocopy_seed.remote.halves import EnvironmentFailed, Half, Halves
from zerocopy_seed.remote.joining import join
from zerocopy_seed.remote.retry import Retry
from zerocopy_seed.remote.specs import spec_to_message
from zerocopy_seed.remote.transport import GrpcTransport, Stream, Transport

RECONNECT_S = 600.0
_LEAVE_WITHIN_S = 5.0


def _print(line: str) -> None:
    print(line, flush=True)


class Actor:
    """Takes part in runs until it is told to leave, or the run ends.

    Args:
      make_transport: opens a way to the learner; called anew after each failure.
      address: of the learner, for messages.
      num_envs: how many environments; None lets the learner say.
      env: the learner's own, which one that it names by a module must be, since whatever a module is
        asked for by somebody else is not imported; or another to run in its place, without its settings.
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
        self._halves = Halves()
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
            self._halves.close()

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
            halves = self._halves.fit(run, self._num_envs, self._env)
            num_envs = sum(half.num_envs for half in halves)
            stream, seeds = await join(transport, run, spec_to_message(halves[0].spec), num_envs)
            self._report(
                f"{self._halves.name}: {num_envs} environment{'s' * (num_envs > 1)} "
                f"for the learner at {self._address}"
            )
            self._stepping = True
            await self._step(stream, halves, seeds)
        finally:
            self._stepping = False
            await transport.close()

    async def _step(self, stream: Stream, halves: Sequence[Half], seeds: Sequence[int]) -> None:
        """Steps until somebody says goodbye."""
        waiting: dict[int, Half] = {}
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


def run_actor(
    address: str,
    *,
    credentials: Credentials = NO_CREDENTIALS,
    num_envs: int | None = None,
    env: str | None = None,
    reconnect_s: float = RECONNECT_S,
    parent_pid: int | None = None,
) -> int:
    """Runs an actor in this process until a goodbye, SIGINT or SIGTERM.

    Args:
      address: of the learner: `host:port` or `unix:/path`.
      credentials: what it is shown, and known by.
      num_envs: how many environments; None lets the learner say.
      env: environment to run; see `Actor`.
      reconnect_s: how long to try to reach the learner, at the start and after a loss; `inf` for ever.
      parent_pid: process whose end ends this one at once, whatever it is doing.

    Returns:
      The exit code: 0 after a goodbye, 1 if the environment failed or no learner answered.

    Raises:
      UserError: a malformed address, a refusal, an environment that cannot be made.
    """
    if parent_pid is not None:
        threading.Thread(target=_end_with, args=(parent_pid,), daemon=True).start()
    parsed = parse_address(address)
    where, diagnosis = parsed.text, Diagnosis(parsed, credentials)

    def make_transport() -> Transport:
        return GrpcTransport(where, credentials, diagnosis)

    try:
        asyncio.run(
            _run_until_signal(
                Actor(make_transport, where, num_envs=num_envs, env=env, reconnect_s=reconnect_s)
            )
        )
    except (EnvironmentFailed, Unavailable) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


async def _run_until_signal(actor: Actor) -> None:
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


def _end_with(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(0.5)
    os._exit(1)
