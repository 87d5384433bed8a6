"""What the benches' commands have in common."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

import jax

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import Config
from zerocopy_seed.config_checks import validate


def pin_to_one_core() -> None:
    """Keeps this process on one core: on several, timings wander. Call it before JAX starts its threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def with_num_envs(configs: Sequence[Config], num_envs: Sequence[int]) -> list[Config]:
    """Each configuration with each number of environments, its own without any; all of them checked.

    Raises:
      UserError: one does not fit.
    """
    sized = [
        dataclasses.replace(config, env=dataclasses.replace(config.env, num_envs=size))
        for config in configs
        for size in num_envs or (config.env.num_envs,)
    ]
    for config in sized:
        validate(config)
    return sized


def require_no_choice(bench: str, configs: Sequence[Config], num_envs: Sequence[int]) -> None:
    """For benches of one fixed shape.

    Raises:
      UserError: for a configuration or numbers of environments.
    """
    for flag, given in (("--config", configs), ("--num-envs", num_envs)):
        if given:
            raise UserError(
                f"bench {bench}: {flag}", expected="none, since its shape is fixed", remedy="leave it out"
            )


def report(
    bench: str,
    configs: Sequence[Config],
    measure: Callable[[Config], dict[str, Any]],
    describe: Callable[[dict[str, Any]], str],
    *,
    as_json: bool,
    **common: Any,
) -> None:
    """Measures one configuration after another, and prints the figures of each as they come.

    Args:
      bench: its name.
      configs: what is measured.
      measure: a configuration -> its figures.
      describe: those -> a line.
      as_json: print no lines, but one object at the end.
      **common: figures of all of them, for that object.
    """
    results = []
    for config in configs:
        results.append(measure(config))
        if not as_json:
            print(describe(results[-1]), flush=True)
    if as_json:
        print_json(bench, common | (results[0] if len(results) == 1 else {"results": results}))


def print_json(bench: str, figures: dict[str, Any]) -> None:
    """Prints one object on one line: the bench, the machine, the figures."""
    device = jax.devices()[0]
    machine = {"device": device.device_kind, "platform": device.platform, "host": platform.machine()}
    print(json.dumps({"bench": bench, **machine, **figures}))
