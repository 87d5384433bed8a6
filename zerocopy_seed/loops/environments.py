"""From a configuration to environments."""

from __future__ import annotations

import dataclasses
from typing import Any

from zerocopy_envs import registry
from zerocopy_envs.checks.jax_environment import check_types
from zerocopy_envs.errors import UserError
from zerocopy_envs.types import EnvironmentSpec, HostEnvironment
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.config import EnvConfig


@dataclasses.dataclass(frozen=True)
class HostEnvironments:
    """Environments that step on the host, by name: `make` starts some of them.

    Attributes:
      name: as the registry knows it.
      settings: of each.
      spec: of each.
      owns_loop: `name` gives a spec alone: the simulator joins as an actor by itself and cannot be made here.
    """

    name: str
    settings: dict[str, Any]
    spec: EnvironmentSpec
    owns_loop: bool = False

    def make(self, num_envs: int) -> HostEnvironment:
        """`num_envs` of them; the caller closes it.

        Raises:
          UserError: the simulator owns its loop.
        """
        environment = registry.make(self.name, num_envs=num_envs, **self.settings)
        if registry.environment_kind(environment) == "spec":
            raise UserError(
                f"environment {self.name!r}",
                expected="one that can be made",
                found="a spec alone, for simulators that own their loop",
                remedy="name another with the same spec",
            )
        return environment


def find_environment(config: EnvConfig) -> Vectorized | HostEnvironments:
    """What `config` names: a vectorised JAX environment, or how to make host environments.

    Raises:
      UserError: unknown name or setting, or a JAX environment whose reset and step do not fit its spec.
    """
    environment = registry.make(config.name, **config.settings)
    kind = registry.environment_kind(environment)
    if kind == "spec":
        return HostEnvironments(config.name, config.settings, environment, owns_loop=True)
    if kind == "host":
        environment.close()
        return HostEnvironments(config.name, config.settings, environment.spec)
    check_types(f"environment {config.name!r}", environment)
    return Vectorized(environment)


def make_environment(config: EnvConfig) -> Vectorized:
    """The vectorised JAX environment that `config` names.

    Raises:
      UserError: as `find_environment`, and for an environment that steps on the host.
    """
    environment = find_environment(config)
    if isinstance(environment, HostEnvironments):
        raise UserError(
            f"env.name = {config.name!r}",
            expected="a JAX environment, which steps on the device",
            found="one that steps on the host",
        )
    return environment
