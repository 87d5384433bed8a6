"""From a configuration to environments."""

from __future__ import annotations

from zerocopy_envs import registry
from zerocopy_envs.checks.jax_environment import check_types
from zerocopy_envs.errors import UserError
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.config import EnvConfig


def make_environment(config: EnvConfig) -> Vectorized:
    """The vectorised JAX environment that `config` names.

    Raises:
      UserError: unknown name or setting, an environment that runs on the host, or one whose reset and step
        do not fit its spec.
    """
    environment = registry.make(config.name, **config.settings)
    if registry.environment_kind(environment) == "host":
        environment.close()
        raise UserError(
            f"env.name = {config.name!r}",
            expected="a JAX environment: training on others comes with the bridge",
            found="one that steps on the host",
            remedy="see `zerocopy-seed envs` for those that run on the device",
        )
    check_types(f"environment {config.name!r}", environment)
    return Vectorized(environment)
