"""Sums and maxima over the devices that share a batch; without a mesh, the values themselves."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax


def sum_over_devices(tree: Any, axis_name: str | None) -> Any:
    """Every leaf summed over the mesh axis `axis_name` (None: unchanged)."""
    return tree if axis_name is None else lax.psum(tree, axis_name)


def max_over_devices(value: jax.Array, axis_name: str | None) -> jax.Array:
    """The largest over the mesh axis `axis_name`, element by element (None: unchanged)."""
    return value if axis_name is None else lax.pmax(value, axis_name)


def local_copy(tree: Any, axis_name: str | None) -> Any:
    """Replicated values as this device's own: gradients by them stay local until summed explicitly."""
    if axis_name is None:
        return tree
    return jax.tree.map(lambda leaf: lax.pcast(leaf, axis_name, to="varying"), tree)


def device_index(axis_name: str | None) -> jax.Array | int:
    """This device's place on the mesh axis; 0 without one."""
    return 0 if axis_name is None else lax.axis_index(axis_name)
