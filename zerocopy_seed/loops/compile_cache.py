"""Compiled programs kept on disk, so that the next run with the same shapes starts at once."""

from __future__ import annotations

import os
import pathlib

import jax


def compile_cache_dir() -> pathlib.Path:
    """Where they are kept: $ZEROCOPY_SEED_CACHE_DIR, or under the user's cache."""
    configured = os.environ.get("ZEROCOPY_SEED_CACHE_DIR")
    if configured:
        return pathlib.Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "zerocopy_seed" / "xla"


def use_compile_cache() -> None:
    """Turns the cache on for this process."""
    jax.config.update("jax_compilation_cache_dir", str(compile_cache_dir()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
