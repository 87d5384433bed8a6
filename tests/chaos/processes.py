"""Real processes of the command, for tests that stop and kill them."""

import os
import pathlib
import re
import subprocess
import sys
import time


class Process(subprocess.Popen):
    """`zerocopy-seed WORDS`, or another program; what it says is in `said`. Ends with its context.

    Args:
      words: of the command, or with `program` all of them.
      log: where it writes, stdout and stderr together.
      program: what to run in place of the command.
    """

    def __init__(self, *words, log: pathlib.Path, program=(sys.executable, "-m", "zerocopy_seed.cli")):
        self.log = log
        with open(log, "ab") as file:
            super().__init__(
                [*program, *map(str, words)], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )

    def __exit__(self, *arguments):
        if self.poll() is None:
            self.kill()
        super().__exit__(*arguments)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_to_say(self, pattern: str, seconds: float = 600.0, times: int = 1) -> float:
        """Seconds until it has said what matches `pattern` so many times."""
        return wait_for(lambda: len(re.findall(pattern, self.said)) >= times, seconds, self)


def wait_for(condition, seconds: float = 600.0, process: subprocess.Popen | None = None) -> float:
    """Seconds until `condition()`, while `process` lives."""
    began = time.monotonic()
    while not condition():
        said = process.said if isinstance(process, Process) else ""
        assert process is None or process.poll() is None, (process.returncode, said)
        assert time.monotonic() - began < seconds, said
        time.sleep(0.02)
    return time.monotonic() - began


def is_alive(pid: int) -> bool:
    status = pathlib.Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


def actors_of(pid: int) -> list[int]:
    """Local actors of a learner."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"\0actor\0" in _command_line(int(child))]


def _command_line(pid: int) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def finished_steps(run_dir: pathlib.Path) -> list[int]:
    """Checkpoints that have their name."""
    directory = run_dir / "checkpoints"
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())
