"""From TOML tables and flags to dataclasses, strictly: nothing unknown, nothing coerced. Imports no JAX.

File and flags take the same way: a flag is laid over the file's tables as a `Flag`, which the type of its key
turns into a value.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Iterable
from typing import Any, Literal, NoReturn

from zerocopy_envs.errors import UserError, did_you_mean, known, nearest
from zerocopy_seed.config import Config
from zerocopy_seed.config_keys import (
    as_float,
    dataclass_variants,
    default_of,
    describe,
    field_types,
    keys,
    variants_by_name,
    without_range,
)

_SETTINGS_OF_R2D2 = ("dqn", "double_dqn", "prioritized_dqn", "apex_dqn")


@dataclasses.dataclass(frozen=True)
class Flag:
    """What the command line gave for a key: the flag as typed, and the words that followed it."""

    name: str
    words: tuple[str, ...]


def structure(kind: Any, value: Any, path: str, file: str) -> Any:
    """Makes `value`, as TOML or flags gave it, an instance of `kind`.

    Args:
      kind: a dataclass, a union of them told apart by `name`, or the type of a field.
      value: tables as dicts, with `Flag`s among the leaves.
      path: dotted path of the key, for messages; "" at the root.
      file: where the tables were read from, for messages.

    Raises:
      UserError: an unknown or missing key, or a wrong type, naming the key, its source and what was expected.
    """
    kind = without_range(kind)
    if variants := dataclass_variants(kind):
        return _structure_table(variants, value, path, file)
    if isinstance(value, Flag):
        return _check(kind, _read_words(kind, value), f"{path} ({value.name})")
    if kind == dict[str, Any] and isinstance(value, dict):
        return {key: _settle(inner) for key, inner in value.items()}
    return _check(kind, value, f"{path} ({_source(value, file)})")


def _structure_table(variants: list[type], value: Any, path: str, file: str) -> Any:
    if not isinstance(value, dict):
        named = "name" in field_types(variants[0])
        raise UserError(
            f"{path} ({_source(value, file)})",
            expected="a table",
            found=_show(value),
            remedy=f"did you mean {path}.name?" if named else "",
        )
    variant = _choose(variants, value, path, file)
    hints = field_types(variant)
    prefix = f"{path}." if path else ""
    for name, inner in value.items():
        if name not in hints:
            source = _source(inner, file)
            _refuse_other_variants_key(name, path, variant, variants, source)
            _refuse_unknown(name, f"{prefix}{name}", hints, path, source)
    for field in dataclasses.fields(variant):
        missing = field.name not in value and default_of(field) is dataclasses.MISSING
        if missing and not dataclass_variants(hints[field.name]):
            flag = f"--{prefix}{field.name}".replace("_", "-")
            raise UserError(
                f"{prefix}{field.name} ({file})",
                expected=describe(hints[field.name]),
                found="nothing",
                remedy=f"add it or pass {flag}",
            )
        if missing:
            value = {**value, field.name: {}}
    return variant(
        **{name: structure(hints[name], inner, f"{prefix}{name}", file) for name, inner in value.items()}
    )


def _choose(variants: list[type], table: dict[str, Any], path: str, file: str) -> type:
    """The variant that the table's `name` asks for; the first if it asks for none."""
    by_name = variants_by_name(variants)
    if "name" not in table or not by_name:
        return variants[0]
    name = structure(Literal[*by_name], table["name"], f"{path}.name", file)
    return by_name[name]


def _refuse_other_variants_key(
    name: str, table: str, chosen: type, variants: list[type], source: str
) -> None:
    """Refuses a key that belongs to another variant of the table."""
    names = {variant: choice for choice, variant in variants_by_name(variants).items()}
    for variant, choice in names.items():
        if name in field_types(variant):
            raise UserError(
                f"{table}.{name} ({source})",
                expected=f"a key of {table}.name = {names[chosen]!r}",
                found=f"one of {table}.name = {choice!r}",
                remedy=f"leave it out, or choose {choice} (--{table}.name {choice})",
            )


def _refuse_unknown(name: str, path: str, siblings: Iterable[str], table: str, source: str) -> NoReturn:
    remedy = did_you_mean(name, siblings)
    if not remedy:
        elsewhere = {key.path.rpartition(".")[2]: key.path for key in keys(Config)}
        near = nearest(name, elsewhere, cutoff=0.8)
        remedy = f"did you mean {elsewhere[near]}?" if near else known(siblings)
    expected = f"a key of [{table}]" if table else "a key or table of a configuration"
    raise UserError(f"{path} ({source})", expected=expected, found="an unknown one", remedy=remedy)


def _check(kind: Any, value: Any, subject: str) -> Any:
    """`value` if it is of `kind`, an integer made a float where one belongs; nothing else is converted."""
    kind = without_range(kind)
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        # 1 == True, and yet another value
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise UserError(
                subject, expected=describe(kind), found=_show(value), remedy=_choice_remedy(choices, value)
            )
        return value
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            remedy = f"write [{value}]" if type(value) is int else ""
            raise UserError(subject, expected=describe(kind), found=_show(value), remedy=remedy)
        element = typing.get_args(kind)[0]
        return tuple(_check(element, inner, f"{subject}[{place}]") for place, inner in enumerate(value))
    if kind is float and type(value) is int:
        return as_float(subject, value)
    if type(value) is not (dict if kind == dict[str, Any] else kind):
        raise UserError(
            subject, expected=describe(kind), found=_show(value), remedy=_type_remedy(kind, value)
        )
    return value


def _choice_remedy(choices: tuple[Any, ...], value: Any) -> str:
    spelled = {"0": "false", "1": "true", "false": "false", "true": "true"}
    bare = value.strip("\"'") if isinstance(value, str) else str(value)
    if any(isinstance(choice, bool) for choice in choices) and bare.lower() in spelled:
        quoted = " without quotes" if bare.lower() in spelled.values() else ""
        return f"write {spelled[bare.lower()]}{quoted}"
    if not isinstance(value, str):
        return ""
    if "r2d2" in choices and (variant := nearest(bare.replace("-", "_"), _SETTINGS_OF_R2D2)):
        return f"it is a setting of r2d2: see configs/{variant}_*.toml"
    return did_you_mean(value, [choice for choice in choices if isinstance(choice, str)])


def _type_remedy(kind: Any, value: Any) -> str:
    if kind is int and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if kind in (int, float) and isinstance(value, str) and _number(value) is not None:
        return "write it without quotes"
    if kind is int and isinstance(value, str) and "," in value:
        return f"on the command line write {' '.join(value.replace(',', ' ').split())}"
    if kind is bool and type(value) is int and value in (0, 1):
        return f"write {str(bool(value)).lower()}"
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return f"write {value.lower()} without quotes"
    return ""


def _read_words(kind: Any, flag: Flag) -> Any:
    """The words of a flag as the value they spell for this kind, or as a string where they spell none."""
    if typing.get_origin(kind) is tuple:
        values = [toml_value(word) for word in flag.words]
        return values[0] if len(values) == 1 and isinstance(values[0], list) else values
    if kind is bool and not flag.words:
        return True
    if len(flag.words) != 1:
        raise UserError(flag.name, expected=describe(kind), found=" ".join(flag.words) or "nothing after it")
    (word,) = flag.words
    if kind in (int, float):
        number = _number(word)
        return word if number is None else number
    if kind is bool:
        return toml_value(word)
    kinds = {type(choice) for choice in typing.get_args(kind)} & {bool, int}
    spelled = toml_value(word) if kinds else word
    return spelled if type(spelled) in kinds else word


def toml_value(word: str) -> Any:
    """A word of the command line as TOML reads it (`10`, `1e-3`, `[1, 2]`), else as a string."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    try:
        table = tomllib.loads(f"value = {word}")
    except tomllib.TOMLDecodeError:
        return word
    return table["value"] if len(table) == 1 else word


def _settle(value: Any) -> Any:
    """A free-form value with its flags read as TOML values."""
    if isinstance(value, Flag):
        values = [toml_value(word) for word in value.words]
        return values[0] if len(values) == 1 else values or True
    if isinstance(value, dict):
        return {key: _settle(inner) for key, inner in value.items()}
    return value


def _number(word: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return None


def _source(value: Any, file: str) -> str:
    """The flag that put `value` there, or the file."""
    if isinstance(value, Flag):
        return value.name
    if isinstance(value, dict) and value:
        sources = {_source(inner, file) for inner in value.values()}
        return file if file in sources else min(sources)
    return file


def _show(value: Any) -> str:
    if isinstance(value, Flag):
        return " ".join(value.words) or "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, dict) else repr(value)
