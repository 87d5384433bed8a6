"""A conformance check that any environment, ours or a user's, must pass. JAX is imported only for JAX ones.

from zerocopy_envs.testing import check_environment
check_environment("my_package.environments:make_maze", size=9)
"""

from __future__ import annotations

from typing import Any

from zerocopy_envs.checks.stream import check_spec
from zerocopy_envs.registry import environment_kind, make
from zerocopy_envs.types import Environment, EnvironmentSpec, HostEnvironment


def check_environment(
    environment: str | Environment | HostEnvironment | EnvironmentSpec,
    *,
    num_steps: int = 200,
    seed: int = 0,
    **settings: Any,
) -> None:
    """Plays random episodes and checks everything that agents and loops rely on.

    Args:
      environment: a name that `make` takes, or an environment. A host environment is stepped, not closed;
        of a spec alone there is only the spec to check.
      num_steps: steps to play; longer finds more. Ends of episodes are checked only if some come that soon.
      seed: of the actions and of the environment.
      **settings: passed to `make`.

    Raises:
      UserError: the first thing that is wrong, in one line.
    """
    name = environment if isinstance(environment, str) else type(environment).__name__
    made: Any = make(environment, **settings) if isinstance(environment, str) else environment
    kind = environment_kind(made, name)
    if kind == "spec":
        check_spec(name, made)
    elif kind == "jax":
        from zerocopy_envs.checks.jax_environment import check_jax_environment

        check_jax_environment(name, made, num_steps, seed)
    else:
        from zerocopy_envs.checks.host_environment import check_host_environment

        check_host_environment(name, made, num_steps, seed)
