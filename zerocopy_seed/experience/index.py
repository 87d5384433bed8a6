"""A record's index: what its unrolls are made of, and its shards with their hashes. Imports no JAX.

A record is a directory of `000000.npz`, `000001.npz`, ... and `index.json`, which is written anew,
atomically, after every shard: a shard that it does not name is none. Each shard holds rounds, an unroll of
every slot each: arrays [rounds, ...] by the names of a trajectory's leaves, and `is_due` [rounds] bool.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import json_format

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.manifest import NotIntact, read_hashed, sync_directory, write_hashed
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.specs import first_difference, spec_from_message, spec_to_message

INDEX = "index.json"
"""The file's name in a record."""

UNFINISHED = ".unfinished"
"""How names of files end that are being written."""

_FORMAT = 1

Leaves = Mapping[str, Mapping[str, Any]]
"""Of a trajectory: name -> {"dtype", "shape"}."""


@dataclasses.dataclass(frozen=True)
class Description:
    """What every round of a record is.

    Attributes:
      environment: its name.
      settings: passed to it.
      spec: of it; tuples, lists and NamedTuples of observations are tuples here (`make_description`).
      agent: the name of the one that acted.
      num_envs: slots, B.
      unroll_length: T.
      leaves: of a round's trajectory.
    """

    environment: str
    settings: dict[str, Any]
    spec: EnvironmentSpec
    agent: str
    num_envs: int
    unroll_length: int
    leaves: Leaves

    @property
    def round_bytes(self) -> int:
        """Bytes of a round."""
        return sum(
            np.dtype(leaf["dtype"]).itemsize * math.prod(leaf["shape"]) for leaf in self.leaves.values()
        )


class Shard(NamedTuple):
    """One file: its name, bytes and hash, its rounds, and the updates that they were learned from in."""

    name: str
    size: int
    sha256: str
    num_rounds: int
    num_updates: int


@dataclasses.dataclass(frozen=True)
class Index:
    """A record's description and its shards, oldest first."""

    description: Description
    shards: tuple[Shard, ...] = ()

    @property
    def num_rounds(self) -> int:
        """Of all shards."""
        return sum(shard.num_rounds for shard in self.shards)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.shards)


def plain_spec(spec: EnvironmentSpec) -> EnvironmentSpec:
    """`spec` as an index gives it back: dicts and tuples alone.

    Raises:
      UserError: an observation whose dtypes or names have no counterpart there.
    """
    return spec_from_message(spec_to_message(spec))


def open_index(directory: Path) -> Index | None:
    """A record's index; None where there is no record yet: nothing, or an empty directory.

    Raises:
      UserError: a damaged index, or a directory of other things.
    """
    path = directory / INDEX
    if not path.exists():
        if directory.exists() and (not directory.is_dir() or any(map(_is_foreign, directory.iterdir()))):
            raise UserError(
                str(directory),
                expected="a record, or an empty or new directory",
                found=f"no {INDEX} in it, and other files" if directory.is_dir() else "a file",
                remedy="choose another",
            )
        return None
    try:
        return _from_json(read_hashed(path))
    except (NotIntact, KeyError, TypeError, ValueError, json_format.ParseError) as error:
        reason = str(error) if isinstance(error, NotIntact) else f"{path}: {' '.join(str(error).split())}"
        raise UserError(
            str(directory),
            expected="a record with an intact index",
            found=reason,
            remedy="restore it from a copy, or record anew elsewhere",
        ) from error


def write_index(directory: Path, index: Index) -> None:
    """Atomically, over the one before."""
    replacement = directory / f"{INDEX}{UNFINISHED}"
    write_hashed(replacement, _to_json(index))
    os.replace(replacement, directory / INDEX)
    sync_directory(directory)


def check_fits(subject: str, wanted: Description, recorded: Description) -> None:
    """Compares what a run needs with what a record has.

    Args:
      subject: the record, as the user named it.
      wanted: of the run; its environment's spec is not known where that of the record is taken.
      recorded: of the record.

    Raises:
      UserError: names the first field that differs, and both values.
    """
    for field, in_run, in_record, flag in (
        ("env.name", wanted.environment, recorded.environment, True),
        ("env.settings", wanted.settings, recorded.settings, False),
        ("agent.name", wanted.agent, recorded.agent, True),
        ("env.num_envs", wanted.num_envs, recorded.num_envs, True),
        ("agent.unroll_length", wanted.unroll_length, recorded.unroll_length, True),
    ):
        if in_run != in_record:
            option = f"--{field.replace('_', '-')} {in_record}"
            remedy = f"set {option}, or choose another record" if flag else "choose another record"
            raise UserError(
                field, expected=f"{in_record!r}, as in {subject}", found=repr(in_run), remedy=remedy
            )
    if difference := first_difference(recorded.spec, wanted.spec):
        raise UserError(
            f"spec.{difference.field}",
            expected=f"{difference.expected}, as in {subject}",
            found=f"{difference.found} in {wanted.environment}",
            remedy="choose another record",
        )
    for name in (*wanted.leaves, *(name for name in recorded.leaves if name not in wanted.leaves)):
        in_run, in_record = wanted.leaves.get(name), recorded.leaves.get(name)
        if in_run != in_record:
            raise UserError(
                f"trajectory{name}",
                expected=f"{_show(in_record)}, as in {subject}",
                found=f"{_show(in_run)} with this [network]",
                remedy="use the core, core_size and frame_stack that it was recorded with",
            )


def _is_foreign(path: Path) -> bool:
    """Whether it is none of what a killed run leaves before there is an index."""
    return not path.name.startswith(".") and not path.name.endswith(UNFINISHED)


def _show(leaf: Mapping[str, Any] | None) -> str:
    return "no such array" if leaf is None else f"{leaf['dtype']} {tuple(leaf['shape'])}"


def _to_json(index: Index) -> dict[str, Any]:
    description = dataclasses.asdict(index.description) | {
        "spec": json_format.MessageToDict(spec_to_message(index.description.spec))
    }
    shards = [shard._asdict() for shard in index.shards]
    return {"format": _FORMAT, "description": description, "shards": shards}


def _from_json(body: dict[str, Any]) -> Index:
    if body["format"] != _FORMAT:
        raise ValueError(f"format {body['format']}, this version reads {_FORMAT}")
    description = dict(body["description"])
    message = json_format.ParseDict(description.pop("spec"), bridge_pb2.Spec())
    shards = tuple(Shard(**shard) for shard in body["shards"])
    return Index(Description(spec=spec_from_message(message), **description), shards)


def as_json(value: Any) -> Any:
    """A setting as it comes back from an index; what JSON has no word for as its text."""
    return json.loads(json.dumps(value, default=str))
