"""A flag for every key of the configuration: `--agent.learning-rate 1e-3`. Imports no JAX."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
import typing
from collections.abc import Sequence
from typing import Any, Literal

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import Config
from zerocopy_seed.config_keys import (
    Key,
    dataclass_variants,
    field_types,
    keys,
    variants_by_name,
    without_range,
)
from zerocopy_seed.config_tables import Flag


def read_flags(words: Sequence[str]) -> list[Flag]:
    """Splits a command line into flags and the words that follow each (`--flag=word` too).

    Raises:
      UserError: a word that no flag precedes.
    """
    flags: list[Flag] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            flags.append(Flag(name, (value,) if equals else ()))
        elif flags:
            flags[-1] = dataclasses.replace(flags[-1], words=(*flags[-1].words, word))
        else:
            raise UserError(word, expected="a flag, as in --section.key value")
    return flags


def num_words(flag: str) -> float:
    """How many words a flag of this name can take."""
    path = flag.removeprefix("--").replace("-", "_")
    if path.startswith("sweep."):
        return math.inf
    kinds = {key.path: without_range(key.kind) for key in keys(Config)}
    return math.inf if typing.get_origin(kinds.get(path)) is tuple else 1


def lay_over(tables: dict[str, Any], flags: Sequence[Flag]) -> dict[str, Any]:
    """The file's tables with each flag at its path, dashes read as underscores; later flags win."""
    tables = copy.deepcopy(tables)
    for flag in flags:
        *sections, name = flag.name.removeprefix("--").replace("-", "_").split(".")
        table = tables
        for section in sections:
            if not isinstance(table.get(section), dict):
                table[section] = {}
            table = table[section]
        table[name] = flag
    return tables


def add_flags(parser: argparse.ArgumentParser, config: Config | None) -> None:
    """Adds every key to a parser's `--help`, with the values of `config`, or the built-in ones without it."""
    groups = {Config: parser.add_argument_group("experiment")}
    for key in keys(Config) if config is None else keys(Config, config):
        if key.owner not in groups:
            groups[key.owner] = parser.add_argument_group(_title(key, config), key.owner.__doc__)
        flag = f"--{key.path.replace('_', '-')}"
        if key.kind == dict[str, Any]:
            flag += ".KEY"
        text = f"{key.doc} (default: {_show(key.value)})".replace("%", "%%")
        groups[key.owner].add_argument(flag, metavar=_metavar(key), help=text, default=argparse.SUPPRESS)


def _title(key: Key, config: Config | None) -> str:
    """The section of a key; where all variants are listed, with the name that chooses the key's own."""
    section = key.path.rpartition(".")[0]
    names = variants_by_name(dataclass_variants(field_types(Config)[section]))
    if config is None:
        for name, variant in names.items():
            if variant is key.owner:
                return f"{section} (name = {name})"
    return section


def _metavar(key: Key) -> str:
    kind = key.kind
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(map(_show, typing.get_args(kind))) + "}"
    if typing.get_origin(kind) is tuple:
        return "INT ..."
    words = {int: "INT", float: "FLOAT", bool: "{true,false}", str: "STR"}
    return words.get(without_range(kind), "VALUE")


def _show(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "none, required"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "[]"
    return str(value).lower() if isinstance(value, bool) else str(value)
