"""Nested dicts, tuples and lists of arrays, without JAX."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any


def named_leaves(tree: Any, name: str = "observation") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dicts, tuples and lists with their paths; dicts in sorted order, as JAX has them.

    A path reads `observation.camera[0]`; a key that contains `.`, `[`, `]` or `"` is quoted as in JSON:
    `observation["camera.left"]`.
    """
    if isinstance(tree, dict):
        for key in sorted(tree):
            plain = not any(mark in str(key) for mark in '.[]"')
            yield from named_leaves(tree[key], f"{name}.{key}" if plain else f"{name}[{json.dumps(key)}]")
    elif isinstance(tree, tuple | list):
        for i, item in enumerate(tree):
            yield from named_leaves(item, f"{name}[{i}]")
    else:
        yield name, tree


def leaves(tree: Any) -> list[Any]:
    """The leaves alone, in the order of `named_leaves`."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, tuple | list):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """`jax.tree.map` for nested dicts, tuples and NamedTuples, without JAX."""
    if isinstance(tree, dict):
        return {key: map_leaves(function, tree[key], *(other[key] for other in others)) for key in tree}
    if isinstance(tree, tuple | list):
        items = [map_leaves(function, *items) for items in zip(tree, *others, strict=True)]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return function(tree, *others)
