"""Adapter of brax 0.14.2 (https://github.com/google/brax).

Only the environments' own `reset` and `step` are used. brax's auto-reset wrapper starts every episode of a
slot from the same state; here each has a random start of its own, from its key. (`fast`, brax's toy without
physics, always starts alike.) Settings are those of `make_environment` and the arguments of the
environment's constructor, under their own names.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from zerocopy_envs.brax_backends import BACKENDS, ENVIRONMENTS, UNSUPPORTED, backend_notes, working_backends
from zerocopy_envs.brax_interface import BraxInterface
from zerocopy_envs.errors import UserError, did_you_mean, known
from zerocopy_envs.settings import check_settings
from zerocopy_envs.suite_adapter import check_whole

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # jaxopt, which brax imports, is no longer maintained
    from brax import envs


def make_environment(
    name: str, *, backend: str = "", max_episode_steps: int = 1000, action_repeat: int = 1, **settings: Any
) -> BraxInterface:
    """The `brax` suite's factory.

    Args:
      name: brax's name, such as `inverted_pendulum`.
      backend: the physics, one of `brax_backends.BACKENDS`; empty for the first that the environment runs on.
      max_episode_steps: the time limit, in steps of the agent.
      action_repeat: brax's steps for each of the agent's.
      **settings: arguments of the environment's constructor (`reset_noise_scale`, ...).

    Raises:
      UserError: an unknown setting, with the nearest one there is; a backend that the environment does not
        run on, with those that it does; or a value that is out of range.
    """
    full_name = f"brax:{name}"
    if not working_backends(name):
        raise UserError(f"environment {full_name!r}", expected="one that runs", found=backend_notes()[name])
    if name not in ENVIRONMENTS:
        raise UserError(
            f"environment {full_name!r}",
            expected="an environment of suite 'brax'",
            remedy=did_you_mean(name, ENVIRONMENTS) or known(ENVIRONMENTS),
        )
    constructor = envs._envs[name]  # brax has no public way to ask which arguments an environment takes
    own = {
        parameter.name: parameter.default
        for parameter in inspect.signature(constructor).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name != "backend"
    }
    common = {"backend": backend, "max_episode_steps": max_episode_steps, "action_repeat": action_repeat}
    check_settings(full_name, common, {"backend": "", "max_episode_steps": 1, "action_repeat": 1})
    check_settings(full_name, settings, {**own, **common})
    check_whole(f"{full_name}: setting 'max_episode_steps'", max_episode_steps, 1)
    check_whole(f"{full_name}: setting 'action_repeat'", action_repeat, 1)
    backend = backend or working_backends(name)[0]
    check_backend(name, backend)
    environment = make_on_backend(name, backend, **settings)
    return BraxInterface(environment, "pipeline_state", max_episode_steps, action_repeat)


def make_on_backend(name: str, backend: str, **settings: Any) -> Any:
    """brax's own object, whether or not it runs on that backend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # brax says of itself that it is no longer maintained
        return envs.get_environment(name, backend=backend, **settings)


def check_backend(name: str, backend: str) -> None:
    """Refuses a backend that an environment does not run on.

    Raises:
      UserError: with the backends that it runs on.
    """
    subject = f"brax:{name}: setting 'backend'"
    if backend not in BACKENDS:
        raise UserError(
            subject,
            expected="one of brax's backends",
            found=repr(backend),
            remedy=did_you_mean(backend, BACKENDS) or known(BACKENDS),
        )
    if (name, backend) in UNSUPPORTED:
        raise UserError(
            subject,
            expected=f"one that runs: {', '.join(working_backends(name))}",
            found=f"{backend!r} ({UNSUPPORTED[name, backend]})",
        )
