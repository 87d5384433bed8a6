"""Checkpoints: Orbax writes and reads the arrays, this module makes a step whole, verified, or nothing.

A directory holds one directory per step: `<step>/<item>/...` (Orbax) and `<step>/manifest.json`. A step is
written under `<step>.unfinished`, then hashed, then renamed: whatever kills the process leaves either the
finished name with its manifest inside, or a name that says it is unfinished.

Orbax's AsyncCheckpointer does the saving rather than a thread of our own around the synchronous one: it takes
the values off the device before `save` returns, writes each host's shards, and meets the other hosts through
the coordination service, where a device barrier in a thread could interleave with the learner's collectives.
Our thread only waits for it, then hashes and renames, which on several hosts is the first one's work. Each
item is a flat dict from leaf path to array, so that NamedTuples, empty tuples and typed keys need nothing of
Orbax, and restoring onto other devices needs only the target's shardings.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, overload

import jax

from zerocopy_envs.errors import UserError
from zerocopy_seed import hosts, manifest
from zerocopy_seed.leaves import check_fits, describe, named_leaves, raw_array
from zerocopy_seed.orbax_arrays import import_orbax, quiet_failures, read_leaves

PyTree = Any
_SAVE_TIMEOUT_S = 3600  # Orbax's own ten minutes are short for a large replay on a slow disk
_LIKE_THE_LAST = 0.9  # of its size, at least, since what is saved is compressed
_UNFINISHED = re.compile(r"(\d+)\.unfinished")


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved (a full disk, a read-only directory); training may go on."""


class Checkpointer:
    """Saves and restores the steps of one directory; one run writes, any number of processes may read.

    Where a run has several hosts they call it together: all write their parts, the first one finishes.
    Reading creates nothing. Use it as a context manager: leaving waits for the save that is under way.

    Args:
      directory: where the steps lie; created by the first `save`.
      max_to_keep: newest steps kept after each save.
      warn: called with one line for each step that is skipped or dropped; Python warnings by default.

    Attributes:
      has_failed_part: whether this host could not write its part of a step: others then wait for it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_to_keep: int = 3,
        *,
        warn: Callable[[str], None] = warnings.warn,
    ):
        self._directory = Path(directory).absolute()
        self._max_to_keep = max_to_keep
        self._warn = warn
        self._orbax: Any = None
        self._quiet: contextlib.ExitStack | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.has_failed_part = False
        self._broken: set[int] = set()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        if exception_type is None:
            self.close()
            return
        try:
            self.close()
        except CheckpointError as error:  # must not hide what is already on its way up
            self._warn(str(error))

    def save(self, step: int, items: Mapping[str, PyTree]) -> None:
        """Starts saving; returns as soon as the arrays may be donated or deleted.

        Waits for the save before, if that one is still running. A step that exists is replaced. Once it is
        written, older steps beyond `max_to_keep` go, and so do later steps: they belong to a run that was
        rolled back.

        Args:
          step: not negative.
          items: name -> pytree of JAX arrays; each name can be restored on its own.

        Raises:
          CheckpointError: this save could not start, or the one before failed; then this one is not
            started, and a second call starts it.
          TypeError: a leaf is not a JAX array.
        """
        self.wait()
        arrays, described = {}, {}
        for item, tree in items.items():
            leaves = named_leaves(tree)
            for name, leaf in leaves.items():
                if not isinstance(leaf, jax.Array):
                    raise TypeError(f"{item}{name}: expected a JAX array, found {type(leaf).__name__}")
            described[item] = {name: describe(leaf) for name, leaf in leaves.items()}
            # Orbax refuses arrays without elements; their shape says all there is to restore
            arrays[item] = {name: raw_array(leaf) for name, leaf in leaves.items() if leaf.size}
        ocp = import_orbax()
        if self._quiet is None:
            self._quiet = contextlib.ExitStack()
            self._quiet.enter_context(quiet_failures())
        unfinished = self._directory / f"{step}.unfinished"
        try:
            hosts.first_does(self._make_room)
            if self._orbax is None:
                self._orbax = ocp.AsyncCheckpointer(
                    ocp.CompositeCheckpointHandler(),
                    timeout_secs=_SAVE_TIMEOUT_S,
                    # a directory that cannot be made fails here and now, not after a time-out
                    async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
                )
            saves = {item: ocp.args.PyTreeSave(leaves) for item, leaves in arrays.items() if leaves}
            self._orbax.save(unfinished, args=ocp.args.Composite(**saves))
        except Exception as error:
            self._abandon(unfinished)
            raise self._failure(step, error) from error
        self._thread = threading.Thread(
            name="checkpoint", target=self._finish, args=(step, unfinished, described)
        )
        self._thread.start()

    @property
    def is_saving(self) -> bool:
        """Whether a save is under way; if none is, `wait` returns at once."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Waits for the save under way; raises `CheckpointError`, once, if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits as `wait` does and lets go of Orbax's threads."""
        try:
            self.wait()
        finally:
            self._close_orbax()
            if self._quiet is not None:
                self._quiet.close()
                self._quiet = None

    def steps(self) -> list[int]:
        """Finished steps, oldest first; whether they are intact is found out by `restore`."""
        return sorted(int(path.name) for path in self._entries() if path.name.isdecimal() and path.is_dir())

    @overload
    def restore(self, items: str, target: PyTree, step: int | None = None) -> tuple[int, PyTree]: ...

    @overload
    def restore(
        self, items: Mapping[str, PyTree], *, step: int | None = None, optional: Collection[str] = ()
    ) -> tuple[int, dict[str, PyTree]]: ...

    def restore(
        self, items: Any, target: PyTree = None, step: int | None = None, optional: Collection[str] = ()
    ) -> tuple[int, Any]:
        """Reads items of one step, after verifying all files of the step.

        `restore("acting", target)` gives one tree, `restore({"acting": target, ...})` a dict of them.

        Args:
          items: an item's name, or item -> target for several of the same step.
          target: a pytree of arrays or `jax.ShapeDtypeStruct`: the structure, shapes and dtypes to restore,
            and where to (a leaf without sharding goes to the first local device).
          step: which one; by default the newest that is intact. Newer ones that are unfinished or damaged
            are passed over, with a warning each.
          optional: items that a step may lack; the dict then lacks them too. Where no step is intact, one in
            which only these are damaged is taken without them, with another warning.

        Returns:
          The step, and a pytree of JAX arrays or item -> such a pytree.

        Raises:
          UserError: no such step, no intact step, or items that do not fit the targets.
          CheckpointError: a save was under way and failed.
        """
        self.wait()
        targets = {items: target} if isinstance(items, str) else items

        def find() -> tuple[int, dict[str, Any]] | None:
            if not hosts.is_first():
                return None
            if step is None:
                return self._find_newest(targets, optional)
            return self._find(step, targets, optional)

        chosen, found = hosts.of_first_as_json(hosts.require_all(find))
        restored = self._read(chosen, found, targets)
        return chosen, restored[items] if isinstance(items, str) else restored

    def _find_newest(
        self, targets: Mapping[str, PyTree], optional: Collection[str]
    ) -> tuple[int, dict[str, Any]]:
        """The newest intact step, and its manifest's items."""
        self._warn_unfinished()
        if found := self._newest(targets, optional):
            return found
        required = {item: target for item, target in targets.items() if item not in optional}
        if required.keys() != targets.keys() and (found := self._newest(required, (), without=optional)):
            return found
        listed = ", ".join(map(str, sorted({*self.steps(), *self._unfinished()})))
        raise UserError(
            str(self._directory),
            expected="an intact checkpoint" if listed else "a checkpoint",
            found=f"only damaged or unfinished ones ({listed})" if listed else "none",
            remedy="restore the files from a copy, or train anew" if listed else "is this the run directory?",
        )

    def _newest(
        self, targets: Mapping[str, PyTree], optional: Collection[str], without: Collection[str] = ()
    ) -> tuple[int, dict[str, Any]] | None:
        """The newest intact step, where the items in `without` may be damaged; None if there is none."""
        for candidate in reversed(self.steps()):
            try:
                found = self._verified(candidate, targets, optional, without)
            except manifest.NotIntact as error:
                self._broken.add(candidate)
                if not without:
                    self._warn(f"checkpoint {candidate} is damaged and skipped: {error}")
            else:
                if without:
                    self._warn(f"checkpoint {candidate} is taken without its {', '.join(without)}")
                return candidate, found
        return None

    def _warn_unfinished(self) -> None:
        finished = self.steps()
        for unfinished in sorted(self._unfinished(), reverse=True):
            if not finished or unfinished > finished[-1]:
                self._warn(
                    f"{self._directory}: checkpoint {unfinished} is unfinished "
                    "(being written, or killed while saving); skipped"
                )

    def _find(
        self, step: int, targets: Mapping[str, PyTree], optional: Collection[str]
    ) -> tuple[int, dict[str, Any]]:
        finished = self.steps()
        if step not in finished:
            raise UserError(
                str(self._directory),
                expected=f"checkpoint {step}",
                found=", ".join(map(str, finished)) or "none",
                remedy="choose one of those" if finished else "is this the run directory?",
            )
        try:
            return step, self._verified(step, targets, optional)
        except manifest.NotIntact as error:
            raise UserError(
                f"checkpoint {step}",
                expected="an intact checkpoint",
                found=str(error),
                remedy=f"choose another of {', '.join(map(str, finished))}",
            ) from error

    def _verified(
        self,
        step: int,
        targets: Mapping[str, PyTree],
        optional: Collection[str],
        without: Collection[str] = (),
    ) -> dict[str, Any]:
        """The manifest's items, once the step's files are as recorded; else `NotIntact`."""
        step_dir = self._directory / str(step)
        items = manifest.read_verified(step_dir, step, needed=targets, but=without)
        for item in targets:
            if item not in items and item not in optional:
                raise UserError(
                    str(step_dir), expected=f"an item named {item}", found=", ".join(items) or "none"
                )
        return items

    def _read(self, step: int, items: Mapping[str, Any], targets: Mapping[str, PyTree]) -> dict[str, PyTree]:
        targets = {item: target for item, target in targets.items() if item in items}
        wanted = {}
        for item, target in targets.items():
            wanted[item] = named_leaves(target)
            check_fits(f"{self._directory / str(step)}: {item}", wanted[item], items[item]["leaves"])
        return {
            item: jax.tree.unflatten(
                jax.tree.structure(target), read_leaves(self._directory / str(step) / item, wanted[item])
            )
            for item, target in targets.items()
        }

    def _finish(self, step: int, unfinished: Path, described: dict[str, dict[str, Any]]) -> None:
        try:
            self._wait_for_parts()
            if not hosts.is_first():
                return
            manifest.write(unfinished, step, described)
            final = self._directory / str(step)
            if final.exists():
                os.rename(final, self._directory / f"{step}.deleting")
            os.rename(unfinished, final)
            manifest.sync_directory(self._directory)
            self._broken.discard(step)
            self._prune(step)
        except Exception as error:
            self._abandon(unfinished)
            self._error = self._failure(step, error)
            self._error.__cause__ = error

    def _wait_for_parts(self) -> None:
        try:
            self._orbax.wait_until_finished()
        except Exception:
            self.has_failed_part = True
            raise

    def _prune(self, newest: int) -> None:
        finished = self.steps()
        if later := [step for step in finished if step > newest and step not in self._broken]:
            self._warn(
                f"{self._directory}: checkpoints {', '.join(map(str, later))} are later than {newest}, "
                "from a run that was rolled back; deleted"
            )
        intact = [step for step in finished if step <= newest and step not in self._broken]
        for step in set(finished) - set(intact[-self._max_to_keep :]):
            # renamed first, so that a kill half-way leaves nothing that looks finished
            os.rename(self._directory / str(step), self._directory / f"{step}.deleting")
            self._broken.discard(step)
        self._remove_leftovers()

    def _make_room(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        self._require_room()

    def _require_room(self) -> None:
        """Refuses where the newest step would not fit once more.

        Orbax would fill what is left of the disk, which others write to, before it fails.
        """
        if not (finished := self.steps()):
            return
        newest = self._directory / str(finished[-1])
        size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
        free = shutil.disk_usage(self._directory).free
        if free < _LIKE_THE_LAST * size:
            found = f"{free / 1e6:,.1f} MB are free, the last one has {size / 1e6:,.1f} MB"
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {found}")

    def _entries(self) -> list[Path]:
        return list(self._directory.iterdir()) if self._directory.is_dir() else []

    def _unfinished(self) -> set[int]:
        return {int(match[1]) for path in self._entries() if (match := _UNFINISHED.match(path.name))}

    def _remove_leftovers(self) -> None:
        for path in self._entries():
            if _UNFINISHED.match(path.name) or path.name.endswith(".deleting"):
                shutil.rmtree(path)

    def _abandon(self, unfinished: Path) -> None:
        """Frees the disk of what a failed save left, and starts the next one with a fresh Orbax."""
        if hosts.is_first():
            with contextlib.suppress(OSError):
                for path in unfinished.parent.glob(f"{unfinished.name}*"):
                    shutil.rmtree(path, ignore_errors=True)
        self._close_orbax()

    def _close_orbax(self) -> None:
        orbax, self._orbax = self._orbax, None
        if orbax is not None:
            with contextlib.suppress(Exception):  # what failed is reported already
                orbax.close()

    def _failure(self, step: int, error: Exception) -> CheckpointError:
        reason = " ".join(str(error).split()) or type(error).__name__
        return CheckpointError(f"checkpoint {step} was not saved in {self._directory}: {reason}")
