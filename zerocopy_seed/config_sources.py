"""What `sources` says of a run: who has which of its slots. Imports no JAX."""

from __future__ import annotations

from zerocopy_seed.config import Config, EnvConfig


def is_mixed(config: Config) -> bool:
    """Whether batches come from the device and from actors at once."""
    return config.sources.actors > 0.0


def num_on_device(config: Config) -> int:
    """How many of `env.num_envs` are on the device, where sources divide them; the others are in actors."""
    return round(config.sources.device * config.env.num_envs)


def actors_environment(config: Config) -> EnvConfig:
    """What actors run."""
    sources = config.sources
    if not sources.actors_env:
        return config.env
    return EnvConfig(name=sources.actors_env, num_envs=config.env.num_envs, settings=sources.actors_settings)
