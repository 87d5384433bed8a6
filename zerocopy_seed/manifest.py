"""SHA-256 manifests: how a checkpoint, or a record, shows that it is whole. Imports no JAX.

Orbax restores a flipped byte without a word, so every file of a step is listed with its size and hash in
`manifest.json`, which also keeps what each item holds (names, dtypes, shapes) and a hash of itself. A step is
whole or it is not: items that nobody asked for are verified with the others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

FILE_NAME = "manifest.json"


class NotIntact(Exception):
    """Files that must not be used; the message names the first one and what is wrong with it."""

    def __init__(self, path: Path, reason: str):
        super().__init__(f"{path}: {reason}")


def write(step_dir: Path, step: int, leaves: dict[str, dict[str, Any]]) -> None:
    """Hashes the files of the step, writes the manifest last, and sees all of it onto the disk.

    Args:
      step_dir: holds one directory per item (none for an item without arrays).
      step: recorded, so that a renamed directory is found out.
      leaves: for each item, what its leaves are: name -> {"dtype", "shape"}.
    """
    items = {
        item: {"leaves": described, "files": _describe(_files(step_dir / item))}
        for item, described in leaves.items()
    }
    files = _describe(_files_beside(step_dir))
    write_hashed(step_dir / FILE_NAME, {"format": 1, "step": step, "items": items, "files": files})
    for directory in (step_dir, *(path for path in step_dir.rglob("*") if path.is_dir())):
        sync_directory(directory)


def read_verified(
    step_dir: Path, step: int, *, needed: Collection[str], but: Collection[str] = ()
) -> dict[str, Any]:
    """The manifest's items, item -> {"leaves", "files"}, once every file of the step is as they say.

    Args:
      step_dir: holds them.
      step: which one it must be.
      needed: items that must be there; others may have been taken away, directory and all.
      but: items whose files may be damaged; they are left out.

    Raises:
      NotIntact: names the first file that is missing, extra, cut or changed, or misplaced.
    """
    path = step_dir / FILE_NAME
    body = read_hashed(path)
    if body["step"] != step:
        raise NotIntact(path, f"belongs to step {body['step']}, not to {step}")
    items = {item: recorded for item, recorded in body["items"].items() if item not in but}
    for item, recorded in items.items():
        if item not in needed and recorded["files"] and not (step_dir / item).exists():
            continue
        _verify(step_dir / item, _files(step_dir / item), recorded["files"])
    if "files" in body:  # earlier manifests have only the items'
        _verify(step_dir, _files_beside(step_dir), body["files"])
    return items


def _verify(directory: Path, present: dict[str, Path], files: dict[str, dict[str, Any]]) -> None:
    for name, path in present.items():
        if name not in files:
            raise NotIntact(path, "not in the manifest")
    for name, recorded in files.items():
        path = directory / name
        if name not in present:
            raise NotIntact(path, "missing")
        try:
            if (size := path.stat().st_size) != recorded["size"]:
                raise NotIntact(path, f"{size} bytes, the manifest says {recorded['size']}")
            if file_sha256(path) != recorded["sha256"]:
                raise NotIntact(path, "does not match the manifest's SHA-256")
        except OSError as error:
            raise NotIntact(path, f"unreadable ({error.strerror})") from error


def write_hashed(path: Path, body: dict[str, Any]) -> None:
    """Writes `body` as JSON beside its SHA-256, and sees the file onto the disk."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"sha256": _body_sha256(body), "body": body}, file)
        file.flush()
        os.fsync(file.fileno())


def read_hashed(path: Path) -> dict[str, Any]:
    """What `write_hashed` wrote; `NotIntact` if it is missing, unreadable or not what its SHA-256 says."""
    try:
        content = json.loads(path.read_bytes())
        body = content["body"]
        if content["sha256"] != _body_sha256(body):
            raise NotIntact(path, "the manifest does not match its own SHA-256")
    except FileNotFoundError:
        raise NotIntact(path, "missing") from None
    except OSError as error:
        raise NotIntact(path, f"unreadable ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise NotIntact(path, "the manifest is damaged") from error
    return body


def file_sha256(path: Path, *, sync: bool = False) -> str:
    """SHA-256, in hex, of a file; with `sync` it is on the disk afterwards."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
    return digest


def sync_directory(directory: Path) -> None:
    """Makes what was created in or renamed into `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(item_dir: Path) -> dict[str, Path]:
    paths = sorted(path for path in item_dir.rglob("*") if not path.is_dir())
    return {path.relative_to(item_dir).as_posix(): path for path in paths}


def _files_beside(step_dir: Path) -> dict[str, Path]:
    """Orbax's own, beside the items."""
    return {
        path.name: path for path in sorted(step_dir.iterdir()) if path.is_file() and path.name != FILE_NAME
    }


def _describe(paths: dict[str, Path]) -> dict[str, dict[str, Any]]:
    return {
        name: {"size": path.stat().st_size, "sha256": file_sha256(path, sync=True)}
        for name, path in paths.items()
    }


def _body_sha256(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
