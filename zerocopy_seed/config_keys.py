"""The keys of a configuration: paths, types, ranges and help texts. Imports no JAX."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import Range


class Key(typing.NamedTuple):
    """A dotted path, its type (with its `Range`), its help text, its value, and the dataclass that has it."""

    path: str
    kind: Any
    doc: str
    value: Any
    owner: type


def keys(kind: Any, instance: Any = dataclasses.MISSING, prefix: str = "") -> Iterator[Key]:
    """Every key of a dataclass, depth first; of a union, the instance's keys, or without one those of all.

    What all variants of a union have comes once, owned by the base that they share; their `name` takes any of
    their names. `value` is `dataclasses.MISSING` where there is neither an instance nor a default.
    """
    variants = dataclass_variants(kind)
    if instance is not dataclasses.MISSING:
        variants = [type(instance)]
    shared = set.intersection(*(set(field_types(variant)) for variant in variants))
    for place, variant in enumerate(variants):
        docs, hints = field_docs(variant), field_types(variant)
        for field in dataclasses.fields(variant):
            path, hint = f"{prefix}{field.name}", hints[field.name]
            owner = variant
            if field.name in shared and len(variants) > 1:
                if place:
                    continue
                owner = _shared_base(variants)
                if field.name == "name":
                    hint = Literal[*variants_by_name(variants)]
            if dataclass_variants(hint):
                inner = (
                    dataclasses.MISSING if instance is dataclasses.MISSING else getattr(instance, field.name)
                )
                yield from keys(hint, inner, f"{path}.")
            else:
                value = (
                    default_of(field) if instance is dataclasses.MISSING else getattr(instance, field.name)
                )
                yield Key(path, hint, docs.get(field.name, ""), value, owner)


def dataclass_variants(kind: Any) -> list[type]:
    """The dataclasses among which `name` chooses: one, those of a union, or none."""
    members = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return [member for member in members if isinstance(member, type) and dataclasses.is_dataclass(member)]


def variants_by_name(variants: Iterable[type]) -> dict[str, type]:
    """What `name` may be -> the variant that it chooses; empty where nothing is chosen by name."""
    return {
        choice: variant
        for variant in variants
        for choice in typing.get_args(field_types(variant).get("name"))
    }


def _shared_base(variants: list[type]) -> type:
    """The nearest dataclass that all variants inherit from; the first variant where there is none."""
    common = [base for base in variants[0].__mro__ if all(issubclass(other, base) for other in variants)]
    return next((base for base in common if dataclasses.is_dataclass(base)), variants[0])


@functools.cache
def field_types(kind: type) -> dict[str, Any]:
    """Resolved annotations of a dataclass."""
    return typing.get_type_hints(kind, include_extras=True)


@functools.cache
def field_docs(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass, inherited ones included."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for base in kind.__bases__:
        if dataclasses.is_dataclass(base):
            docs |= field_docs(base)
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs


def range_of(kind: Any) -> Range | None:
    """The `Range` of a field's type, or of a list's elements."""
    if typing.get_origin(kind) is tuple:
        kind = typing.get_args(kind)[0]
    ranges = [extra for extra in getattr(kind, "__metadata__", ()) if isinstance(extra, Range)]
    return ranges[0] if ranges else None


def describe(kind: Any) -> str:
    """A type in a user's words."""
    kind = without_range(kind)
    if typing.get_origin(kind) is Literal:
        return " or ".join(
            str(choice).lower() if isinstance(choice, bool) else repr(choice)
            for choice in typing.get_args(kind)
        )
    if typing.get_origin(kind) is tuple:
        return "a list of integers"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    return words.get(kind, "a table")


def without_range(kind: Any) -> Any:
    """The bare type of a field."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def default_of(field: dataclasses.Field) -> Any:
    """A field's default, or `dataclasses.MISSING`."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def as_float(subject: str, value: float) -> float:
    """An integer, or a float, as a float.

    Raises:
      UserError: naming `subject`; an integer that no float is as large as.
    """
    try:
        return float(value)
    except OverflowError:
        raise UserError(subject, expected="a number that a float can hold", found="a larger one") from None
