"""From a configuration to environments, and what every program that runs JAX sets first."""

from __future__ import annotations

import os
import pathlib

import jax

from zerocopy_envs import registry
from zerocopy_envs.errors import UserError
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.config import EnvConfig


def compile_cache_dir() -> pathlib.Path:
    """Where compiled programs are kept between runs: $ZEROCOPY_SEED_CACHE_DIR, or under the user's cache."""
    configured = os.environ.get("ZEROCOPY_SEED_CACHE_DIR")
    if configured:
        return pathlib.Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "zerocopy_seed" / "xla"


def use_compile_cache() -> None:
    """Keeps compiled programs on disk, so that the next run with the same shapes starts at once."""
    jax.config.update("jax_compilation_cache_dir", str(compile_cache_dir()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def make_environment(config: EnvConfig) -> Vectorized:
    """The vectorised JAX environment that `config` names.

    Raises:
      UserError: unknown name or setting, or an environment that runs on the host.
    """
    environment = registry.make(config.name, **config.settings)
    if registry.environment_kind(environment) == "host":
        raise UserError(
            f"env.name = {config.name!r}",
            expected="a JAX environment",
            found="one that steps on the host",
            remedy="see `zerocopy-seed envs` for those that run on the device",
        )
    return Vectorized(environment)
