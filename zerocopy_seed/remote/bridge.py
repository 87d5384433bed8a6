"""What the learner answers to actors, whatever carries the messages: descriptions, sessions, steps."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import secrets
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from zerocopy_envs.types import EnvironmentSpec, StepType
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.codec import ACTIONS_GOODBYE, decode_observations, encode_actions, read_request
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.errors import ProtocolError, Refused
from zerocopy_seed.remote.requests import Request, make_request, where_of
from zerocopy_seed.remote.specs import first_difference, spec_from_message, spec_to_message
from zerocopy_seed.remote.transport import SOFTWARE, VERSION
from zerocopy_seed.remote.usual import Usual, make_usual
from zerocopy_seed.remote.wire_format import make_wire_format

_STREAM_WITHIN_S = 30.0  # from joining; then the slots are for others
_MOST_EVENTS = 1000  # kept until they are taken
_NAMED_EVERY_S = 60.0  # an actor whose timesteps cannot be used, at most
_MOST_SHOWN = 10  # runs of slots in a line
_MOST_KNOWN = 16  # sets of environments that an actor's messages are about; there are one or two

Event = tuple[str, str, dict[str, Any]]
"""Its kind, a line for people, and what else there is to say."""


@dataclasses.dataclass(frozen=True)
class RunDescription:
    """What actors are told of a run."""

    run_id: str
    environment: str
    settings: dict[str, Any]
    spec: EnvironmentSpec
    num_environments: int


@dataclasses.dataclass
class _Session:
    number: int
    slots: np.ndarray
    joined_at: float
    is_open: bool = False
    named_at: float = -math.inf  # when it was last said that timesteps of it could not be used


class Bridge:
    """Everything but the transport. All calls come from one thread.

    Args:
      engine: acts.
      run: what actors are told.
      notify: called when a request has been added to the engine.
    """

    def __init__(self, engine: Engine, run: RunDescription, notify: Callable[[], None]):
        self._engine, self._run, self._notify = engine, run, notify
        self.wire = make_wire_format(run.spec)
        self._spec = spec_to_message(run.spec)
        self._sessions: dict[str, _Session] = {}
        self._connections: set[Connection] = set()
        self.num_lost = 0
        self.num_bytes = 0
        self._num_joined = 0
        self._events: collections.deque[Event] = collections.deque(maxlen=_MOST_EVENTS)
        self._is_ended = False

    def describe(self, request: bridge_pb2.DescribeRequest) -> bridge_pb2.Run:
        """What is run here.

        Raises:
          Refused: another version of the protocol.
        """
        _check_version(request.version)
        return bridge_pb2.Run(
            version=VERSION,
            software=SOFTWARE,
            run_id=self._run.run_id,
            environment=self._run.environment,
            settings=json.dumps(self._run.settings),
            spec=self._spec,
            num_environments=self._run.num_environments,
        )

    def join(self, request: bridge_pb2.JoinRequest, max_envs: float = math.inf) -> bridge_pb2.Session:
        """Takes slots for an actor, which may have `max_envs` at most where it comes from.

        Raises:
          Refused: naming the field that does not fit; or no room.
        """
        _check_version(request.version)
        if self._is_ended:
            raise Refused("UNAVAILABLE", "the learner is ending")
        if request.run_id != self._run.run_id:
            raise _refusal("FAILED_PRECONDITION", "run_id", self._run.run_id, request.run_id)
        difference = first_difference(self._run.spec, spec_from_message(request.spec))
        if difference is not None:
            raise _refusal("FAILED_PRECONDITION", *difference)
        most, setting = self._engine.num_slots, "env.num_envs, or its host's part of it"
        if max_envs < most:
            most, setting = max_envs, "bridge.max_envs_per_actor"
        if not 0 < request.num_environments <= most:
            expected = f"1 to {most}, the learner's {setting}"
            raise _refusal("INVALID_ARGUMENT", "num_environments", expected, str(request.num_environments))
        self.free_forgotten()
        opened = self._engine.open_slots(request.num_environments)
        if opened is None:
            expected = f"at most {self._engine.num_free} environments, the slots that are free"
            raise _refusal("RESOURCE_EXHAUSTED", "num_environments", expected, str(request.num_environments))
        slots, seeds = opened
        identity = secrets.token_hex(16)
        self._num_joined += 1
        session = self._sessions[identity] = _Session(self._num_joined, slots, time.monotonic())
        self._note("actor_joined", session, f"joined, with {len(slots)} environments")
        return bridge_pb2.Session(id=identity, slots=slots.tolist(), seeds=seeds.tolist())

    def open(self, session_id: str, write: Callable[[bytes], None]) -> Connection:
        """A session's stream.

        Args:
          session_id: as `join` gave it; good for one stream.
          write: sends a serialised `Actions` message.

        Raises:
          Refused: no such session.
        """
        session = self._sessions.get(session_id)
        if session is None or session.is_open:
            raise _refusal("UNAVAILABLE", "session", "one that was joined, once", session_id or "none")
        session.is_open = True
        connection = Connection(self, session_id, session.slots, write)
        self._connections.add(connection)
        return connection

    def end(self, *, say_goodbye: bool) -> None:
        """Lets no more actors in; says goodbye to those that are there if the run is over for good."""
        self._is_ended = True
        for connection in self._connections if say_goodbye else ():
            connection.write(ACTIONS_GOODBYE)

    @property
    def num_actors(self) -> int:
        """Actors with an open stream."""
        return len(self._connections)

    @property
    def num_joining(self) -> int:
        """Actors that have joined and have no stream yet."""
        return len(self._sessions) - len(self._connections)

    def take_events(self) -> list[Event]:
        """What has happened to actors since the last call; from any thread."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def _note(self, event: str, session: _Session, what: str) -> None:
        slots = show_slots(session.slots)
        line = f"actor {session.number} {what} (slots {slots})"
        self._events.append((event, line, {"actor": session.number, "slots": slots}))

    def _note_unusable(self, session: _Session) -> bool:
        """Whether there was something to note."""
        found = self._engine.take_unusable(session.slots)
        if found is None:
            return False
        slots = show_slots(found.slots)
        line = (
            f"actor {session.number}: {found.num_rows:,} timesteps could not be used: numbers that are not "
            f"finite, of slots {slots}, in {found.fields}"
        )
        fields = {"actor": session.number, "slots": slots, "num_rows": found.num_rows, "field": found.fields}
        self._events.append(("unusable_rows_of_actor", line, fields))
        return True

    def _close(self, connection: Connection) -> None:
        self._connections.discard(connection)
        session = self._sessions.pop(connection.session_id)
        self._note_unusable(session)  # as long as the slots are its own
        self._engine.close_slots(session.slots)
        is_lost = not connection.said_goodbye and not self._is_ended
        self.num_lost += is_lost
        if is_lost:
            self._note("actor_lost", session, "is lost: its stream ended without a goodbye")
        else:
            self._note("actor_left", session, "has left")

    def name_unusable(self) -> None:
        """Notes whose timesteps could not be used, of each actor once a while; to be called now and then."""
        now = time.monotonic()
        for session in self._sessions.values():
            if now - session.named_at >= _NAMED_EVERY_S and self._note_unusable(session):
                session.named_at = now

    def free_forgotten(self) -> None:
        """Frees the slots of actors that joined and opened no stream; to be called now and then."""
        now = time.monotonic()
        for identity, session in list(self._sessions.items()):
            if not session.is_open and now - session.joined_at > _STREAM_WITHIN_S:
                del self._sessions[identity]
                self._engine.close_slots(session.slots)
                self._note("actor_left", session, "joined and never came")


class Connection:
    """One actor's stream; see `Bridge.open`."""

    def __init__(self, bridge: Bridge, session_id: str, slots: np.ndarray, write: Callable[[bytes], None]):
        self._bridge, self.session_id, self._slots, self.write = bridge, session_id, slots, write
        self._known: dict[bytes, tuple[np.ndarray, slice | np.ndarray, Usual]] = {}
        self.said_goodbye = self._is_closed = False

    def receive(self, data: bytes) -> None:
        """Takes in a serialised `Observations` message; its answer is written later.

        Raises:
          ProtocolError: it does not fit what was agreed upon; the stream is to be ended.
        """
        bridge, engine = self._bridge, self._bridge._engine
        request = self._usual_request(data) or self._request(data)
        if request is None:
            self.said_goodbye = True
            return
        slot = request.slot
        wrong = engine.check(request)
        if wrong is not None:
            expected, which = wrong
            raise ProtocolError(f"slot {which}", expected, "another")
        if len(slot) <= engine.max_rows:
            engine.add(request)
        else:
            for part in _split(request, engine.max_rows):
                engine.add(part)
        bridge.num_bytes += len(data)
        bridge._notify()

    def _usual_request(self, data: bytes) -> Request | None:
        """One in the midst of episodes, about environments that another was about; None if it is no such."""
        number, begin = read_request(data)
        for slot, where, usual in self._known.values():
            if found := usual.read(data, begin):
                reward, leaves = found
                answer = self._answer_to(number)
                return Request(slot, where, usual.step_type, reward, usual.discount, leaves, True, answer)
        return None

    def _request(self, data: bytes) -> Request | None:
        """Any message; None for a goodbye."""
        wire = self._bridge.wire
        message = decode_observations(wire, data, len(self._slots))
        if message.goodbye:
            return None
        known = self._known.get(message.environment)
        if known is None:
            slot = self._slots[np.frombuffer(message.environment, "<i4")]
            known = slot, where_of(slot), make_usual(wire, message.environment)
            if len(self._known) < _MOST_KNOWN:
                self._known[message.environment] = known
        slot, where, _ = known
        answer = self._answer_to(message.request)
        _, _, step_type, reward, discount, leaves, is_usual, _ = message
        if not is_usual:  # 0 at a FIRST is the mark of a stand-in
            discount = np.where(step_type == StepType.FIRST, np.float32(1), discount)
        return Request(slot, where, step_type, reward, discount, leaves, is_usual, answer)

    def _answer_to(self, number: int) -> Callable[[np.ndarray], None]:
        def answer(actions: np.ndarray) -> None:
            if not self._is_closed:
                self.write(encode_actions(self._bridge.wire, number, actions))

        return answer

    def close(self) -> None:
        """Frees the actor's slots, however the stream ended."""
        if not self._is_closed:
            self._is_closed = True
            self._bridge._close(self)


def _split(whole: Request, most: int) -> list[Request]:
    """Requests of at most `most` rows; the whole is answered when all of them are."""
    num_left, actions = len(whole.slot), {}

    def make_part(begin: int) -> Request:
        def answer(some: np.ndarray) -> None:
            nonlocal num_left
            actions[begin] = some
            num_left -= len(some)
            if not num_left:
                whole.answer(np.concatenate([actions[place] for place in sorted(actions)]))

        rows = slice(begin, begin + most)
        return make_request(
            whole.slot[rows],
            whole.step_type[rows],
            whole.reward[rows],
            whole.discount[rows],
            tuple(leaf[rows] for leaf in whole.leaves),
            answer,
        )

    return [make_part(begin) for begin in range(0, len(whole.slot), most)]


def show_slots(slots: np.ndarray) -> str:
    """Slots [n], which ascend, in short: `0-3, 8`; of very many runs the first, and how many more."""
    runs = np.split(slots, np.flatnonzero(np.diff(slots) != 1) + 1)
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:_MOST_SHOWN]]
    num_more = sum(map(len, runs[_MOST_SHOWN:]))
    return ", ".join(shown) + (f" and {num_more} more" if num_more else "")


def _check_version(version: int) -> None:
    if version != VERSION:
        raise _refusal("FAILED_PRECONDITION", "version", str(VERSION), str(version))


def _refusal(code: Any, field: str, expected: str, found: str) -> Refused:
    return Refused(code, f"{field}: expected {expected}, found {found}")
