"""Orbax, as a checkpoint needs it: reading leaves, and keeping what it says to itself off the terminal."""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from zerocopy_seed.leaves import KEY_IMPL, KEY_WORDS, is_key


def import_orbax() -> Any:
    """Orbax, imported when first needed (it takes most of a second); what matters of its log is raised."""
    import orbax.checkpoint as ocp

    logging.getLogger("absl").addFilter(_not_from_orbax)
    return ocp


def read_leaves(item_dir: Path, wanted: Mapping[str, Any]) -> list[jax.Array]:
    """The leaves of one verified item, in the order of `wanted`, on the devices that it names."""
    default = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    raw = {}
    for name, leaf in wanted.items():
        shape, dtype = (
            ((*leaf.shape, KEY_WORDS), np.dtype(np.uint32)) if is_key(leaf) else (leaf.shape, leaf.dtype)
        )
        sharding = getattr(leaf, "sharding", None) or default
        raw[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    stored = {name: leaf for name, leaf in raw.items() if leaf.size}
    restored = {}
    if stored:
        ocp = import_orbax()
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            restored = reader.restore(
                item_dir,
                args=ocp.args.PyTreeRestore(
                    item=stored, restore_args=ocp.checkpoint_utils.construct_restore_args(stored)
                ),
            )
    leaves = []
    for name, leaf in wanted.items():
        array = restored.get(name)
        if array is None:
            array = jax.device_put(np.zeros(raw[name].shape, raw[name].dtype), raw[name].sharding)
        leaves.append(jax.random.wrap_key_data(array, impl=KEY_IMPL) if is_key(leaf) else array)
    return leaves


@contextlib.contextmanager
def quiet_failures() -> Iterator[None]:
    """While saves are made: else every array of one that fails, on a full disk, shows a traceback."""
    show, logger = sys.unraisablehook, logging.getLogger("asyncio")

    def but_late_failures(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            show(unraisable)

    logger.addFilter(_not_a_full_disk)
    sys.unraisablehook = but_late_failures
    try:
        yield
    finally:
        logger.removeFilter(_not_a_full_disk)
        if sys.unraisablehook is but_late_failures:
            sys.unraisablehook = show


def _not_a_full_disk(record: logging.LogRecord) -> bool:
    """False of those that nobody waited for, since another had failed first."""
    error = record.exc_info[1] if record.exc_info else None
    return not (getattr(error, "errno", None) == errno.ENOSPC or "RESOURCE_EXHAUSTED" in str(error))


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname
