"""Inference for actors, and the unrolls that come of it: whatever has arrived is one device call.

The host's ledger (`slots`) and the device's tables (`tables`) meet here. One lock guards both: a server's
driver adds requests and steps, the learner takes trajectories and publishes parameters.
"""

from __future__ import annotations

import collections
import functools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.keys import Stream, as_seeds, slot_keys
from zerocopy_seed.remote import tables as device
from zerocopy_seed.remote.batches import Batch, batch_for, make_batches
from zerocopy_seed.remote.requests import Request
from zerocopy_seed.remote.screening import Screen, Unusable
from zerocopy_seed.remote.slots import Episodes, Slots, Taken
from zerocopy_seed.remote.tables import Column
from zerocopy_seed.types import ActingParams, Agent, Trajectory

_GATHERED_BYTES = 2**21  # of a trajectory while inference waits: a fraction of a millisecond


class Round(NamedTuple):
    """Unrolls for the learner: learn from them, or only store them where an update is not due yet.

    Attributes:
      trajectory: [T, num_slots]; columns without an unroll are padding. The next one is written over it.
      is_due: learn, do not only store.
      slot: int32 [n], whose they are.
    """

    trajectory: Trajectory
    is_due: bool
    slot: np.ndarray


class Engine:
    """See the module.

    Args:
      agent: acts and, on `num_slots` unrolls at once, learns.
      spec: of the environments.
      params: what acting reads at first.
      seed: the run's.
      num_slots: S.
      unroll_length: T.
      max_policy_lag: see `BridgeConfig`.
      max_batch: most rows of one call; rounded up to a power of two.
      first_incarnation: see `Slots`.
      first_slot: the run's number of this engine's slot 0; those before it are elsewhere.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvironmentSpec,
        params: ActingParams,
        *,
        seed: int,
        num_slots: int,
        unroll_length: int,
        max_policy_lag: float,
        max_batch: int,
        first_incarnation: int = 0,
        first_slot: int = 0,
    ):
        self._agent, self._first_slot = agent, first_slot
        self._slots = Slots(
            num_slots,
            unroll_length,
            max_lag=max_policy_lag,
            distinct=agent.store is not None,
            first_incarnation=first_incarnation,
        )
        self._screen = Screen(spec, num_slots)
        make = functools.partial(
            device.make_tables,
            agent,
            spec,
            num_slots=num_slots,
            num_unrolls=self._slots.num_unrolls,
            length=unroll_length,
        )
        tables = jax.jit(make)(params)
        # Tuples of leaves, since to take a tree of named tuples apart costs more than to write its tables.
        self._tables_tree, self._leaves = jax.tree.structure(tables), tuple(jax.tree.leaves(tables))
        self._params = tuple(jax.tree.leaves(params))
        self._trajectory = jax.jit(functools.partial(device.make_trajectory, num_slots))(tables)
        num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self._trajectory))
        self._columns = max(1, min(num_slots, _GATHERED_BYTES * num_slots // num_bytes))
        self._batches = make_batches(spec, min(max_batch, num_slots))
        self.max_rows = self._batches[-1].size

        def open_slots(tables, incarnation, is_opened):
            slots = first_slot + jnp.arange(num_slots, dtype=jnp.int32)
            agent_keys = slot_keys(seed, Stream.AGENT, slots, incarnation)
            tables = device.open_slots(agent, tables, agent_keys, slots, is_opened)
            environment_keys = slot_keys(seed, Stream.ENVIRONMENT, slots, incarnation)
            return tables, jax.random.key_data(environment_keys)

        trees = self._tables_tree, *map(jax.tree.structure, (params, spec.observation))

        def step(tables, params, words, observation):
            tables, params, observation = map(jax.tree.unflatten, trees, (tables, params, observation))
            tables, action = device.step(agent, tables, params, words, observation)
            return tuple(jax.tree.leaves(tables)), action

        # One operation after another: spread over threads that others keep busy, they take milliseconds.
        in_turn: Any = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
        options = in_turn if jax.default_backend() == "cpu" else None
        self._step = jax.jit(step, donate_argnums=0, compiler_options=options)
        self._close = jax.jit(device.close, donate_argnums=0)
        self._gather = jax.jit(device.gather_into, donate_argnums=0)
        self._open = jax.jit(open_slots, donate_argnums=0)

        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inbox: collections.deque[Request] = collections.deque()  # filled without the lock
        self._pending: collections.deque[Request] = collections.deque()
        self._num_stored = 0  # unrolls stored since an update
        self._lags: list[np.ndarray] = []
        self._waiting_since: float | None = None
        self._wait_s = self._learner_wait_s = 0.0
        self._num_calls = self._num_rows = self._num_places = 0
        self.wake: Callable[[], None] = lambda: None

    @property
    def _tables(self) -> device.Tables:
        return jax.tree.unflatten(self._tables_tree, self._leaves)

    @_tables.setter
    def _tables(self, tables: device.Tables) -> None:
        self._leaves = tuple(jax.tree.leaves(tables))

    # The driver's side.

    def open_slots(self, count: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Slots int32 [count] and seeds uint64 [count] of their environments; None if so many are not free.

        A seed is the slot's environment key, its first word in the upper half.
        """
        with self._lock:
            if count > self._slots.num_free:
                return None
            slots = self._slots.open(count)
            self._screen.open(slots)
            is_opened = np.zeros(self._slots.num_slots, bool)
            is_opened[slots] = True
            incarnation = self._slots.incarnation.astype(np.uint32)
            self._tables, words = self._open(self._tables, incarnation, is_opened)
        return slots, as_seeds(words)[slots]

    @property
    def num_slots(self) -> int:
        """Environments that there is room for, S."""
        return self._slots.num_slots

    @property
    def num_free(self) -> int:
        """Slots that nobody has."""
        return self._slots.num_free

    def close_slots(self, slots: np.ndarray) -> None:
        """Frees slots; what waits for their actions is forgotten."""
        with self._lock:
            self._take_inbox()
            gone = set(slots.tolist())
            self._pending = collections.deque(
                request for request in self._pending if gone.isdisjoint(request.slot.tolist())
            )
            self._slots.close(slots)
            self._changed.notify_all()
        self.wake()

    def check(self, request: Request) -> tuple[str, int] | None:
        """See `Slots.check`."""
        return self._slots.check(request)

    def add(self, request: Request) -> None:
        """A request that was checked; at most `max_rows` rows."""
        self._screen.look(request)
        self._slots.arrived(request.where)
        self._inbox.append(request)

    def take_unusable(self, slots: np.ndarray) -> Unusable | None:
        """See `Screen.take`."""
        return self._screen.take(slots)

    @property
    def has_pending(self) -> bool:
        """Whether requests wait."""
        return bool(self._pending or self._inbox)

    def step(self) -> list[tuple[Request, np.ndarray]]:
        """Acts on what has arrived, as much as one call takes: the requests with their actions.

        Empty where nothing waits, or all of it must wait for the learner.
        """
        with self._lock:
            requests, num_rows = self._admit()
            if not requests:
                return []
            batch = batch_for(self._batches, num_rows)
            num_finished = self._slots.num_finished
            begin = 0
            for request in requests:
                batch.fill(request, begin)
                self._assign(batch, request, begin)
                begin += len(request.slot)
            batch.pad(num_rows, self._slots.num_slots, self._slots.num_unrolls)
            actions = self._act(batch)
            self._num_calls += 1
            self._num_rows += num_rows
            self._num_places += batch.size
            answers, begin = [], 0
            for request in requests:
                end = begin + len(request.slot)
                answers.append((request, actions[begin:end]))
                self._slots.answered(request.where)
                begin = end
            if self._slots.num_finished > num_finished and self._is_ready():
                self._changed.notify_all()
        return answers

    # The learner's side.

    def take(self, timeout: float, *, partial: bool = False) -> Round | None:
        """Unrolls for the learner, waited for at most `timeout` seconds; None if there are not enough.

        Where the lag is bounded, one of every live slot. Else `num_slots` of them, whichever finished first;
        an agent with a replay gets them in rounds of different slots, of which the last is due.

        Args:
          timeout: in seconds.
          partial: what there is, be it one unroll; all of it is due.
        """
        is_ready = (lambda: self._slots.num_finished > 0) if partial else self._is_ready
        with self._changed:
            began = time.monotonic()
            self._changed.wait_for(is_ready, timeout)
            self._learner_wait_s += time.monotonic() - began
            if not is_ready():
                return None
            taken = self._slots.take(self._slots.num_slots)
            is_due = True
            if self._agent.store is not None and not partial:
                self._num_stored += len(taken.slot)
                is_due = self._num_stored >= self._slots.num_slots
                self._num_stored -= self._slots.num_slots * is_due
        self._gather_all(taken)
        with self._lock:
            self._lags.append(taken.lag)
            self._slots.give_back(taken.unroll)
            if not is_due:
                self._slots.learned(taken.slot)
        self.wake()
        return Round(self._trajectory, is_due, taken.slot)

    def discard(self, timeout: float) -> None:
        """Forgets the finished unrolls, which are waited for as in `take`: acting goes on, nobody learns."""
        with self._changed:
            self._changed.wait_for(self._is_ready, timeout)
            if not self._slots.num_finished:
                return
            taken = self._slots.take(self._slots.num_finished)
            self._slots.give_back(taken.unroll)
            self._slots.learned(taken.slot)
        self.wake()

    def take_episodes(self) -> Episodes:
        """The episodes that ended since the last call of this or of `figures`."""
        with self._lock:
            return self._slots.take_episodes()

    def gauges(self) -> dict[str, float]:
        """How it is right now, from any thread."""
        return {
            "waiting_requests": len(self._pending) + len(self._inbox),
            "finished_unrolls": self._slots.num_finished,
            "live_slots": self.num_slots - self.num_free,
            "free_slots": self.num_free,
        }

    def publish(self, params: ActingParams, slot: np.ndarray) -> None:
        """What acting reads from now on, after an update from unrolls of slots [n]."""
        with self._lock:
            self._params = tuple(jax.tree.leaves(params))
            self._slots.version += 1
            self._slots.learned(slot)
        self.wake()

    def warm_up(self) -> float:
        """Compiles every program; the seconds that one call of the largest batch takes after that."""
        seconds = 0.0
        with self._lock:
            for batch in self._batches:
                batch.pad(0, self._slots.num_slots, self._slots.num_unrolls)
                for _ in range(3):
                    began = time.perf_counter()
                    self._act(batch)
                    seconds = time.perf_counter() - began
                if self._slots.is_bounded:
                    self._tables = self._close(self._tables, batch.words, batch.observation)
            incarnation = self._slots.incarnation.astype(np.uint32)
            self._tables, _ = self._open(self._tables, incarnation, np.zeros(self._slots.num_slots, bool))
        self._gather_all(None)
        return seconds

    def empty_trajectory(self) -> Trajectory:
        """One of padding alone, [T, num_slots], until the next is taken."""
        self._gather_all(None)
        return self._trajectory

    def figures(self) -> dict[str, float]:
        """What happened since the last call, for a line of metrics."""
        with self._lock:
            lags = np.concatenate(self._lags) if self._lags else np.zeros(0)
            self._lags.clear()
            episodes = self._slots.take_episodes()
            if self._waiting_since is not None:
                now = time.monotonic()
                self._wait_s += now - self._waiting_since
                self._waiting_since = now
            row: dict[str, float] = {
                "num_episodes": len(episodes.slot),
                "num_live_slots": int(self._slots.is_live.sum()),
                "dropped_steps": self._slots.num_dropped,
                "inference_batch": self._num_rows / max(self._num_calls, 1),
                "inference_fill": self._num_rows / max(self._num_places, 1),
                "inference_wait_s": self._wait_s,
                "learner_wait_s": self._learner_wait_s,
            }
            self._learner_wait_s = 0.0
            self._wait_s, self._num_calls, self._num_rows, self._num_places = 0.0, 0, 0, 0
            self._slots.num_dropped = 0
        if len(episodes.slot):
            row["episode_return"] = float(episodes.returns.mean())
            row["episode_length"] = float(episodes.lengths.mean())
        if len(lags):
            row["policy_lag"], row["policy_lag_max"] = float(lags.mean()), int(lags.max())
        return row

    def _gather_all(self, taken: Taken | None) -> None:
        """Gathers unrolls, and padding behind them, some at a time so that inference never waits long."""
        num_slots = self._slots.num_slots
        column = Column(
            unroll=np.full(num_slots, self._slots.num_unrolls, np.int32),
            slot=np.full(num_slots, self._first_slot + num_slots, np.int32),
            continues=np.zeros(num_slots, bool),
        )
        if taken is not None:
            found = taken.unroll, self._first_slot + taken.slot, taken.continues
            # Each slot's in its own column where it is stored: with whichever device has the slot's replay.
            place = taken.slot if self._agent.store is not None else slice(len(taken.slot))
            for all_columns, columns in zip(column, found, strict=True):
                all_columns[place] = columns
        for end in range(self._columns, num_slots + self._columns, self._columns):
            begin = min(end, num_slots) - self._columns
            some = Column(*(columns[begin : begin + self._columns].copy() for columns in column))
            with self._lock:
                self._trajectory = self._gather(self._trajectory, self._tables, some, np.int32(begin))
                jax.block_until_ready(self._trajectory)

    def _is_ready(self) -> bool:
        slots = self._slots
        if slots.is_bounded:
            return slots.all_finished
        return 0 < slots.num_finished >= slots.num_slots - self._num_stored

    def _admit(self) -> tuple[list[Request], int]:
        """Takes from the waiting requests those that may act now, at most one batch of them."""
        self._take_inbox()
        if self._slots.is_bounded:
            self._note_arrivals()
        admitted: list[Request] = []
        kept: list[Request] = []
        num_rows = 0
        while self._pending and num_rows < self.max_rows:
            request = self._pending.popleft()
            size = len(request.slot)
            if num_rows + size > self.max_rows:
                kept.append(request)
                continue
            if not self._slots.may_begin(request.slot, num_rows):
                self._slots.held(request.slot)
                kept.append(request)
                continue
            admitted.append(request)
            num_rows += size
        self._pending.extendleft(reversed(kept))
        if kept and self._slots.is_bounded and self._is_ready():
            self._changed.notify_all()
        if self._waiting_since is not None:
            self._wait_s += time.monotonic() - self._waiting_since
            self._waiting_since = None
        if kept and not admitted:
            self._waiting_since = time.monotonic()
        return admitted, num_rows

    def _take_inbox(self) -> None:
        while self._inbox:
            self._pending.append(self._inbox.popleft())

    def _note_arrivals(self) -> None:
        """Closes unrolls as their last timesteps arrive, since the learner may have to take them first."""
        nowhere = self._slots.num_unrolls
        for request in self._pending:
            if request.closed is not None:
                continue
            closed = self._slots.note(request.slot, request.step_type, request.reward)
            request.closed = np.full_like(closed, nowhere)
            if (closed != nowhere).any():
                batch = batch_for(self._batches, len(closed))
                batch.fill(request, 0)
                batch.closed[: len(closed)] = closed
                batch.pad(len(closed), self._slots.num_slots, nowhere)
                self._tables = self._close(self._tables, batch.words, batch.observation)
                jax.block_until_ready(self._tables)  # from here on the buffers are free again
                self._changed.notify_all()

    def _act(self, batch: Batch) -> np.ndarray:
        self._leaves, action = self._step(self._leaves, self._params, batch.words, batch.leaves)
        return np.asarray(action)  # waits: from here on the buffers are free again

    def _assign(self, batch: Batch, request: Request, begin: int) -> None:
        """Where the rows of a request go."""
        slots, end = self._slots, begin + len(request.slot)
        places = batch.places[:, begin:end]
        if request.closed is None and not slots.is_bounded and slots.go_on(request, places):
            return
        if request.closed is None:
            request.closed = slots.note(request.slot, request.step_type, request.reward)
        unroll, row = slots.begin_rows(request.slot)
        places[:] = request.slot, unroll, row, request.closed
