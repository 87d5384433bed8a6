"""Command lines of manifests, scripts and READMEs, read by the command's own parser."""

import contextlib
import io
import pathlib
import sys
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from zerocopy_seed.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOSTS = {"JAX_COORDINATOR_ADDRESS": "learner-0:8476", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}


class Parsed(NamedTuple):
    """What a command was called with."""

    command: str
    values: tuple[Any, ...]
    options: dict[str, Any]


def parse(words: Sequence[str]) -> Parsed:
    """What `zerocopy-seed WORDS` would do.

    Raises:
      AssertionError: the command refuses them.
    """
    program, command, *_ = words
    assert program == "zerocopy-seed", words
    called: list[Parsed] = []

    def stand_in(*values: Any, **options: Any) -> int:
        called.append(Parsed(command, values, options))
        return 0

    complaint = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for module, name in (
            ("loops.train", "train"),
            ("remote.actor", "run_actor"),
            ("launch_ray", "launch_on_ray"),
            ("certificates", "write_credentials"),
        ):
            given: dict[str, Any] = {name: stand_in}
            if module == "certificates":
                given["next_steps"] = lambda *_: ""
            patch.setitem(sys.modules, f"zerocopy_seed.{module}", types.SimpleNamespace(**given))
        # Hosts are not met.
        for name, value in HOSTS.items():
            patch.setenv(name, value)
        patch.setattr("zerocopy_seed.rendezvous.fork_and_wait", lambda hosts: None)
        joined = types.SimpleNamespace(run_joined=lambda hosts, run, stop, answer: run())
        patch.setitem(sys.modules, "zerocopy_seed.loops.joining", joined)
        # The files that are named are elsewhere.
        access = types.SimpleNamespace(read_actor_credentials=lambda address, **files: files)
        patch.setitem(sys.modules, "zerocopy_seed.remote.access", access)
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(io.StringIO()):
            code = main(list(words[1:]))
    assert code == 0 and len(called) == 1, f"{' '.join(words)}: {complaint.getvalue()}"
    return called[0]
