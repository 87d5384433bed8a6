"""Actor processes that the learner starts and stops itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from zerocopy_seed.restarts import EARLY_S, restart_delay_s

_BY_OTHERS = (-signal.SIGKILL, -signal.SIGTERM)
_MAX_EARLY_ENDS = 3  # by themselves, sooner than EARLY_S: they would not do better the next time
_LONGEST_DELAY_S = 10.0
_STOP_S = 10.0


class LocalActors:
    """Runs `zerocopy-seed actor` processes; a context manager that ends them with itself.

    They are executed, never forked: a fork of a process that runs JAX and gRPC may hang.

    Args:
      address: where they join.
      num_envs: environments of each.
      env: the environment that the learner names, which they may import.
      warn: called with a line when one has ended.
      name: what they are called there.
    """

    def __init__(
        self,
        address: str,
        num_envs: Sequence[int],
        *,
        env: str,
        warn: Callable[[str], None],
        name: str = "local actor",
    ):
        self._address, self._num_envs, self._env = address, tuple(num_envs), env
        self._warn, self._name = warn, name
        self._processes: list[subprocess.Popen] = []
        self._started_at: list[float] = []
        self._early_ends = 0  # of all, by themselves
        self._ends = [0] * len(self._num_envs)  # of each, early, in a row, whoever ended it
        self._due: list[float | None] = [None] * len(self._num_envs)

    def __enter__(self) -> LocalActors:
        try:
            for num_envs in self._num_envs:
                self._processes.append(self._start(num_envs))
                self._started_at.append(time.monotonic())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        give_up = time.monotonic() + _STOP_S
        for process in self._processes:
            try:
                process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [process.pid for process in self._processes]

    def check(self) -> str:
        """Starts anew those that have ended, later where they do so again and again, as if memory were short;
        why that is of no use, in one line, or "".
        """
        for place, process in enumerate(self._processes):
            code = process.poll()
            if code is None:
                continue
            now, due = time.monotonic(), self._due[place]
            if due is not None:
                if due <= now:
                    self._start_anew(place)
                continue
            is_early = now - self._started_at[place] < EARLY_S
            self._ends[place] = self._ends[place] + 1 if is_early else 0
            if code not in _BY_OTHERS:
                self._early_ends = self._early_ends + 1 if is_early else 0
            if self._early_ends >= _MAX_EARLY_ENDS:
                return (
                    f"{self._name} {place}: ends with code {code} as soon as it starts; what it said is above"
                )
            delay_s = restart_delay_s(self._ends[place], _LONGEST_DELAY_S)
            later = f" in {delay_s:g} s" if delay_s else ""
            self._warn(f"{self._name} {place} ended with code {code}; starting it anew{later}")
            self._due[place] = now + delay_s
            if not delay_s:
                self._start_anew(place)
        return ""

    def _start_anew(self, place: int) -> None:
        self._processes[place] = self._start(self._num_envs[place])
        self._started_at[place], self._due[place] = time.monotonic(), None

    def _start(self, num_envs: int) -> subprocess.Popen:
        command = [sys.executable, "-m", "zerocopy_seed.cli", "actor", self._address]
        return subprocess.Popen(
            [*command, "--num-envs", str(num_envs), "--env", self._env, "--parent-pid", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # A JAX environment must leave the accelerator to the learner.
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            # The terminal's Ctrl-C is the learner's to hear: it ends them once it has saved.
            start_new_session=True,
        )


def deal_environments(num_envs: int, num_actors: int, envs_per_actor: int) -> list[int]:
    """Environments of each local actor: so many, or where that is 0 all of them in nearly equal parts."""
    if envs_per_actor:
        return [envs_per_actor] * num_actors
    return [num_envs // num_actors + (place < num_envs % num_actors) for place in range(num_actors)]
