"""One reinforcement-learning learner for simulators on the accelerator and off it. Imports no JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerocopy_envs.errors import UserError

if TYPE_CHECKING:
    from zerocopy_seed.policy import load_policy

__version__ = "0.1.0"
__all__ = ["UserError", "__version__", "load_policy"]


def __getattr__(name: str) -> Any:
    if name != "load_policy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from zerocopy_seed.policy import load_policy  # it needs JAX, which the actor's side does without

    return load_policy
