"""The leaves of a pytree by name: what they are, whether they fit, and one hash over them all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from zerocopy_envs.errors import UserError

PyTree = Any
KEY_IMPL, KEY_DTYPE, KEY_WORDS = "threefry2x32", "key<fry>", 2


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Leaf path -> leaf, in the tree's order: `.params['torso']['kernel']`; a tree that is a leaf is `.`."""
    return {
        jax.tree_util.keystr(path) or ".": leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def is_key(leaf: Any) -> bool:
    """Whether an array, or the description of one, holds typed PRNG keys."""
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def raw_array(leaf: Any) -> Any:
    """The array, or the uint32 words [..., 2] of typed keys."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def describe(leaf: Any) -> dict[str, Any]:
    """Dtype and shape, as JSON; `TypeError` for keys that are not threefry."""
    if is_key(leaf) and str(leaf.dtype) != KEY_DTYPE:
        raise TypeError(f"expected {KEY_IMPL} keys, found {leaf.dtype}")
    return {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}


def tree_sha256(tree: PyTree) -> str:
    """SHA-256, in hex, over the leaves sorted by path: their paths, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, leaf in sorted(named_leaves(tree).items()):
        digest.update(json.dumps([name, describe(leaf)], sort_keys=True).encode())
        digest.update(np.asarray(raw_array(leaf)).tobytes())
    return digest.hexdigest()


def check_fits(subject: str, wanted: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
    """Compares named leaves with their recorded descriptions: Orbax casts without a word.

    Raises:
      UserError: names the first leaf that is missing, extra, or of another dtype or shape.
    """

    def show(leaf: Mapping[str, Any] | None) -> str:
        return "no such array" if leaf is None else f"{leaf['dtype']} {tuple(leaf['shape'])}"

    for name in (*wanted, *(name for name in recorded if name not in wanted)):
        expected = describe(wanted[name]) if name in wanted else None
        found = recorded.get(name)
        if expected != found:
            raise UserError(
                f"{subject}{name}",
                expected=show(expected),
                found=f"{show(found)} in the checkpoint",
                remedy="agent, network and environment must be those that it was trained with",
            )
