"""A learner's policy as a function, for simulators that own their loop. Imports no JAX.

with ActorClient("learner:5000", spec, num_envs=8) as client:
    timestep = simulator.restart(client.seeds)
    while True:
        timestep = simulator.step(client.step(timestep))
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import threading
from collections.abc import Coroutine
from typing import Any

import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.trees import map_leaves
from zerocopy_envs.types import EnvironmentSpec, StepType, TimeStep
from zerocopy_seed.remote.access import NO_CREDENTIALS, Credentials
from zerocopy_seed.remote.addresses import parse_address
from zerocopy_seed.remote.codec import OBSERVATIONS_GOODBYE, decode_actions, encode_observations
from zerocopy_seed.remote.diagnosis import Diagnosis
from zerocopy_seed.remote.errors import ProtocolError, RunEnded, Unavailable
from zerocopy_seed.remote.joining import join
from zerocopy_seed.remote.retry import Retry
from zerocopy_seed.remote.specs import spec_to_message
from zerocopy_seed.remote.transport import GrpcTransport, Stream
from zerocopy_seed.remote.wire_format import make_wire_format


class ActorClient:
    """Joins a learner's run with environments that are stepped elsewhere. To be used by one thread.

    Made, it has joined: `run_id` and `settings` (a JSON object, as text) are the learner's, and `seeds` [N]
    are there for first resets that differ between actors. As a context manager it says goodbye at the end.

    Args:
      address: of the learner: `host:port` or `unix:/path`.
      spec: of the environments; refused unless it is the run's.
      num_envs: how many, N.
      reconnect_s: how long to try to reach the learner, at the start and after a loss; `inf` for ever.
      credentials: see `read_actor_credentials`.

    Raises:
      UserError: the learner refuses, or does not answer in time.
    """

    def __init__(
        self,
        address: str,
        spec: EnvironmentSpec,
        num_envs: int,
        *,
        reconnect_s: float = 600.0,
        credentials: Credentials = NO_CREDENTIALS,
    ):
        self.spec, self.num_envs = spec, num_envs
        self._wire = make_wire_format(spec)
        self._message = spec_to_message(spec)
        parsed = parse_address(address)
        self._address, self._diagnosis = parsed.text, Diagnosis(parsed, credentials)
        self._reconnect_s, self._credentials = reconnect_s, credentials
        self._environment = np.arange(num_envs, dtype=np.int32)
        self._num_requests = 0
        self._transport: GrpcTransport | None = None
        self._stream: Stream | None = None
        self._is_over = False
        self._interrupted: concurrent.futures.Future | None = None
        self.num_reconnects = 0
        self.run_id = self.settings = ""
        self.seeds: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="actor-client", daemon=True)
        self._thread.start()
        try:
            self._do(self._connect())
        except BaseException:
            self._end()
            raise

    def step(self, timestep: TimeStep) -> np.ndarray:
        """Actions [N, ...] for `timestep` [N]; waits for the learner.

        Rows follow the rules of `TimeStep`: FIRST, then MID, then LAST with the true final observation, and
        FIRST again on the step after, whatever the action that answered the LAST.

        Where the connection was lost it joins anew and sends these timesteps again, as the first of new
        episodes: the simulator goes on, and the learner drops what it had not yet learned from.

        Raises:
          ProtocolError: `timestep` does not fit the spec.
          RunEnded: the learner has said goodbye.
          UserError: the learner refuses, or has been out of reach for too long.
        """
        if self._loop.is_closed() or self._interrupted is not None:
            found = "one that is closed" if self._loop.is_closed() else "one whose step was interrupted"
            raise UserError("ActorClient.step", expected="an open client", found=found)
        actions = self._do(self._step(_as_sent(timestep)))
        if actions is None:
            raise RunEnded(f"the learner at {self._address} has ended the run")
        return actions

    def close(self) -> None:
        """Says goodbye."""
        if not self._loop.is_closed():
            try:
                self._do(self._leave())
            finally:
                self._end()

    def __enter__(self) -> ActorClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # as when Ctrl-C ends the wait
                self._interrupted = future
            raise

    async def _step(self, timestep: TimeStep) -> np.ndarray | None:
        while not self._is_over:
            stream = self._stream
            if stream is None:
                stream = await self._connect()
                self.num_reconnects += 1
                timestep = _as_first(timestep)
            try:
                return await self._exchange(stream, timestep)
            except Unavailable:
                if self._interrupted is not None:
                    return None
                await self._drop()
        return None

    async def _exchange(self, stream: Stream, timestep: TimeStep) -> np.ndarray | None:
        self._num_requests += 1
        await stream.write(encode_observations(self._wire, self._num_requests, self._environment, timestep))
        data = await stream.read()
        if data is None:
            raise Unavailable("it ended the stream")
        answer = decode_actions(self._wire, data, self.num_envs)
        if answer.goodbye:
            self._is_over = True
            return None
        if answer.request != self._num_requests:
            raise ProtocolError("Actions.request", str(self._num_requests), str(answer.request))
        return answer.action

    async def _connect(self) -> Stream:
        retry = Retry(self._reconnect_s)
        while True:
            try:
                return await self._join()
            except Unavailable as error:
                await self._drop()
                delay_s = retry.failed()
                if delay_s is None:
                    waited = "" if math.isinf(self._reconnect_s) else f" within {self._reconnect_s:g} s"
                    raise UserError(
                        f"the learner at {self._address}", expected=f"an answer{waited}", found=str(error)
                    ) from error
                await asyncio.sleep(delay_s)

    async def _join(self) -> Stream:
        self._transport = transport = GrpcTransport(self._address, self._credentials, self._diagnosis)
        run = await transport.describe()
        self._stream, self.seeds = await join(transport, run, self._message, self.num_envs)
        self.run_id, self.settings = run.run_id, run.settings
        return self._stream

    async def _leave(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(Unavailable, UserError):
                await self._stream.write(OBSERVATIONS_GOODBYE)
                await self._stream.finish()
                if self._interrupted is not None:
                    await asyncio.wait([asyncio.wrap_future(self._interrupted)])
                while await self._stream.read() is not None:
                    pass
        await self._drop()

    async def _drop(self) -> None:
        transport, self._transport, self._stream = self._transport, None, None
        if transport is not None:
            await transport.close()

    def _end(self) -> None:
        if self._interrupted is not None:
            self._interrupted.cancel()
            asyncio.run_coroutine_threadsafe(self._drop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _as_sent(timestep: TimeStep) -> TimeStep:
    return TimeStep(
        np.asarray(timestep.step_type, np.int8),
        np.asarray(timestep.reward, np.float32),
        np.asarray(timestep.discount, np.float32),
        map_leaves(np.asarray, timestep.observation),
    )


def _as_first(timestep: TimeStep) -> TimeStep:
    return timestep._replace(
        step_type=np.full_like(timestep.step_type, StepType.FIRST),
        reward=np.zeros_like(timestep.reward),
        discount=np.ones_like(timestep.discount),
    )
