"""The `launch ray` command: actor processes on a Ray cluster, placed anew when they end. Imports no JAX.

Ray schedules, starts and watches; each of its actors holds one `zerocopy-seed actor` process as its child.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from zerocopy_envs.errors import UserError
from zerocopy_seed.restarts import EARLY_S, restart_delay_s

_LOOK_EVERY_S = 0.5
_LEAVE_WITHIN_S = 15.0
_USER_ERROR = 2


def _print(line: str) -> None:
    print(line, flush=True)


class ActorProcess:
    """One actor, a process of its own below a Ray worker: signals reach it as they do everywhere else.

    Args:
      words: what follows `zerocopy-seed actor`.
    """

    def __init__(self, words: Sequence[str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zerocopy_seed.cli", "actor", *words, "--parent-pid", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ray has given it CPUs: a JAX environment must not look for an accelerator.
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )

    def where(self) -> tuple[str, int]:
        """Ray's name of the node, and the process's id."""
        import ray  # pyright: ignore[reportMissingImports]  # an extra

        return ray.get_runtime_context().get_node_id(), self._process.pid

    def wait(self) -> tuple[int, str]:
        """Its exit code, and the last line of its complaints; all of them go to the Ray worker's log."""
        last = ""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            last = line.strip() or last
        return self._process.wait(), last

    def leave(self) -> None:
        """Lets it say goodbye."""
        self._process.terminate()


@dataclasses.dataclass
class _Place:
    """One of the fleet: where its actor is, or when it shall be placed anew.

    Attributes:
      number: in messages.
      actor: Ray's handle; None while it waits for `due`.
      where: reference to what says where it is, until it has been read.
      end: reference to how the process ends.
      began: when it was placed.
      due: when to place it, by the monotonic clock.
      early_ends: how many times in a row it ended soon after it began.
    """

    number: int
    actor: Any = None
    where: Any = None
    end: Any = None
    began: float = 0.0
    due: float = 0.0
    early_ends: int = 0


class _Asked:
    """Which signal has asked for the end; the second ends at once, and Ray the actors with this process."""

    def __init__(self) -> None:
        self.signal_name = ""

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: object) -> None:
        if self.signal_name:
            os._exit(128 + number)
        self.signal_name = signal.Signals(number).name


def launch_on_ray(
    words: Sequence[str],
    *,
    num_actors: int,
    num_cpus: float,
    ray_address: str,
    say: Callable[[str], Any] = _print,
) -> int:
    """Keeps `num_actors` actors on a Ray cluster until the learner ends its run, SIGINT or SIGTERM.

    Args:
      words: what follows `zerocopy-seed actor` on the cluster's nodes.
      num_actors: how many.
      num_cpus: that Ray reserves for each.
      ray_address: as `ray.init` takes it; "auto" finds the cluster of this machine.
      say: takes lines about progress.

    Returns:
      0 after a goodbye, the learner's or this fleet's.

    Raises:
      UserError: no cluster there, or an actor refused to start for a reason that holds for all.
      ModuleNotFoundError: Ray is not installed.
    """
    asked = _Asked()
    asked.listen()
    import ray  # pyright: ignore[reportMissingImports]  # an extra

    try:
        # What actors print is for Ray's logs: a thousand would drown the lines of this process.
        ray.init(address=ray_address, log_to_driver=False, logging_level="warning")
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"--ray-address {ray_address}",
            expected="a Ray cluster that answers",
            found=str(error),
            remedy="`ray start --head` starts one; --ray-address local is one for this launch alone",
        ) from error
    asked.listen()  # Ray has put its own handler in place
    try:
        return _Fleet(ray, words, num_actors, num_cpus, say).keep(asked)
    finally:
        ray.shutdown()


class _Fleet:
    """The loop behind `launch_on_ray`."""

    def __init__(
        self, ray: Any, words: Sequence[str], num_actors: int, num_cpus: float, say: Callable[[str], Any]
    ):
        self._ray, self._words, self._num_cpus, self._say = ray, tuple(words), num_cpus, say
        # No restarts by Ray itself: they would not be seen here. Two calls at once: `wait` takes one.
        self._remote = ray.remote(max_restarts=0, max_concurrency=2)(ActorProcess)
        self._places = [_Place(number) for number in range(num_actors)]

    def keep(self, asked: _Asked) -> int:
        cpus = self._ray.cluster_resources().get("CPU", 0.0)
        wanted = len(self._places) * self._num_cpus
        self._say(f"{len(self._places)} actors on {len(self._ray.nodes())} Ray node(s), {cpus:g} CPUs")
        if wanted > cpus:
            self._say(f"{wanted:g} CPUs are wanted: some actors wait until Ray has more")
        try:
            while self._places and not asked.signal_name:
                self._place_due()
                self._look()
        finally:
            if asked.signal_name:
                self._say(f"{asked.signal_name}: ending {len(self._places)} actors")
            self._end()
        return 0

    def _place_due(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.actor is None and place.due <= now:
                place.actor = self._remote.options(num_cpus=self._num_cpus).remote(self._words)
                place.where, place.end = place.actor.where.remote(), place.actor.wait.remote()
                place.began = now

    def _look(self) -> None:
        """Reads what has come within a moment."""
        by_reference = {
            reference: place
            for place in self._places
            for reference in (place.where, place.end)
            if reference is not None
        }
        if not by_reference:
            time.sleep(_LOOK_EVERY_S)
            return
        found, _ = self._ray.wait(list(by_reference), num_returns=1, timeout=_LOOK_EVERY_S)
        ready, _ = self._ray.wait(list(by_reference), num_returns=len(by_reference), timeout=0)
        for reference in {*found, *ready}:
            place = by_reference[reference]
            if reference == place.where:
                self._placed(place)
            elif reference == place.end:
                self._ended(place)

    def _placed(self, place: _Place) -> None:
        try:
            node, pid = self._ray.get(place.where)
        except self._ray.exceptions.RayError:
            return  # its end says the same
        finally:
            place.where = None
        place.began = time.monotonic()  # it may have waited long for a CPU
        addresses = {entry["NodeID"]: entry["NodeManagerAddress"] for entry in self._ray.nodes()}
        self._say(f"actor {place.number} placed on {addresses.get(node, node)}, pid {pid}")

    def _ended(self, place: _Place) -> None:
        try:
            code, complaint = self._ray.get(place.end)
            why = f"ended with code {code}" + (f" ({complaint})" if complaint else "")
        except self._ray.exceptions.RayError as error:
            code, complaint = None, ""
            first, *_ = str(error).strip().splitlines() or [type(error).__name__]
            why = f"was lost ({first.rstrip('.')})"
        self._ray.kill(place.actor)
        place.actor = place.where = place.end = None
        if code == 0:
            self._say(f"actor {place.number} ended: the run is over")
            self._places.remove(place)
            return
        if code == _USER_ERROR:
            raise UserError(f"actor {place.number}: {complaint}")
        is_early = time.monotonic() - place.began < EARLY_S
        place.early_ends = place.early_ends + 1 if is_early else 0
        delay_s = restart_delay_s(place.early_ends)
        place.due = time.monotonic() + delay_s
        self._say(f"actor {place.number} {why}; placing it anew" + (f" in {delay_s:g} s" if delay_s else ""))

    def _end(self) -> None:
        there = [place for place in self._places if place.actor is not None]
        for place in there:
            place.actor.leave.remote()
        ends = [place.end for place in there if place.where is None]
        if ends:
            self._ray.wait(ends, num_returns=len(ends), timeout=_LEAVE_WITHIN_S)
        for place in there:
            self._ray.kill(place.actor)
            self._say(f"actor {place.number} ended")
