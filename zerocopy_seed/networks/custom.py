"""Networks of the user's own: found by name, checked before anything compiles."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from zerocopy_envs.errors import UserError, did_you_mean, users_code
from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.config import NetworkConfig
from zerocopy_seed.networks.types import NetworkInput, NetworkOutput, no_actions, stacked_shape
from zerocopy_seed.types import split_action_mask

_GIVEN = ("spec", "num_policy_params")
_CONTRACT = "see the contract in zerocopy_seed.networks"


def make_custom_network(config: NetworkConfig, spec: EnvironmentSpec, num_policy_params: int) -> nn.Module:
    """Constructs `config.name`, "package.module:Class", and checks its outputs' shapes.

    Raises:
      UserError: naming what is missing or does not fit, and the nearest right name.
    """
    network_class = _load_class(config.name)
    _check_settings(config, network_class)
    with users_code(f"network.name {config.name!r}", "its class to be made"):
        network = network_class(spec=spec, num_policy_params=num_policy_params, **config.settings)
    _check_outputs(config, network, spec, num_policy_params)
    return network


def _load_class(name: str) -> type[nn.Module]:
    subject = f"network.name {name!r}"
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise UserError(
            subject,
            expected='"default" or "package.module:Class"',
            found=repr(name),
            remedy=did_you_mean(name, ["default"]) or _CONTRACT,
        )
    try:
        with users_code(subject, f"a module {module_name!r} that can be imported"):
            module = importlib.import_module(module_name)
    except UserError as failure:
        if isinstance(failure.__cause__, ImportError):
            failure = UserError(
                subject,
                expected=failure.expected,
                found=str(failure.__cause__),
                remedy="run from its folder, or put that on PYTHONPATH",
            )
        raise failure from failure.__cause__
    found = getattr(module, attribute, None)
    if found is None:
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise UserError(
            subject,
            expected=f"a class of {module_name!r}",
            found=f"no {attribute!r} there",
            remedy=did_you_mean(attribute, classes) or _CONTRACT,
        )
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UserError(
            subject,
            expected="a subclass of flax.linen.Module",
            found=repr(found),
            remedy=_CONTRACT,
        )
    return found


def _check_settings(config: NetworkConfig, network_class: type[nn.Module]) -> None:
    fields = {
        field.name: field
        for field in dataclasses.fields(network_class)
        if field.init and field.name not in ("parent", "name")
    }
    for name in _GIVEN:
        if name not in fields:
            raise UserError(
                f"network.name {config.name!r}",
                expected=f"a class with a field {name!r}",
                found=_listed(fields),
                remedy=_CONTRACT,
            )
    settings = [name for name in fields if name not in _GIVEN]
    for name in config.settings:
        if name not in settings:
            raise UserError(
                f"network.settings.{name}",
                expected=f"a setting of {config.name!r}",
                found=_listed(settings),
                remedy=did_you_mean(name, settings) or _CONTRACT,
            )
    for name in settings:
        optional = (fields[name].default, fields[name].default_factory) != (dataclasses.MISSING,) * 2
        if not optional and name not in config.settings:
            raise UserError(
                f"network.settings.{name}",
                expected=f"a value, as {config.name!r} has no default",
                found=_listed(config.settings),
                remedy="set it",
            )


def _check_outputs(
    config: NetworkConfig, network: Any, spec: EnvironmentSpec, num_policy_params: int
) -> None:
    steps, batch = 2, 3
    subject = f"network.name {config.name!r}"
    if not callable(getattr(network, "initial_core", None)):
        raise UserError(
            subject,
            expected="a method initial_core(batch_size)",
            remedy="return () from it if the network has no core",
        )

    def outputs():
        core = network.initial_core(batch)
        inputs = _zero_inputs(spec, config.frame_stack, steps, batch)
        key = jax.random.key(0, impl="threefry2x32")
        output, next_core = network.apply(network.init(key, inputs, core), inputs, core)
        return core, next_core, output

    with users_code(subject, "a call as `zerocopy_seed.networks` describes it to run"):
        core, next_core, output = jax.eval_shape(outputs)
    if any(x.ndim == 0 or x.shape[0] != batch for x in jax.tree.leaves(core)):
        raise UserError(
            f"{subject}, its initial_core({batch})",
            expected=f"arrays [{batch}, ...], a row for every slot",
            found=f"{_types(core)}",
            remedy=_CONTRACT,
        )
    if not isinstance(output, NetworkOutput):
        raise UserError(
            subject, expected="NetworkOutput, core from a call", found=type(output).__name__, remedy=_CONTRACT
        )
    wanted = {"policy": (steps, batch, num_policy_params), "value": (steps, batch)}
    for name, shape in wanted.items():
        array = getattr(output, name)
        if (array.shape, array.dtype) != (shape, jnp.float32):
            raise UserError(
                f"{subject}, its {name} for {steps} steps of {batch} slots",
                expected=f"float32 {shape}",
                found=f"{array.dtype} {array.shape}",
                remedy=_CONTRACT,
            )
    if _types(core) != _types(next_core):
        raise UserError(
            f"{subject}, the core that it returns",
            expected=f"what initial_core({batch}) returns, {_types(core)}",
            found=f"{_types(next_core)}",
            remedy=_CONTRACT,
        )


def _zero_inputs(spec: EnvironmentSpec, frame_stack: int, steps: int, batch: int) -> NetworkInput:
    rest, mask = split_action_mask(spec.observation)
    rest = jax.tree.map(
        lambda leaf: jnp.zeros((steps, batch, *stacked_shape(leaf.shape, frame_stack)), leaf.dtype), rest
    )
    if mask is not None:
        rest["action_mask"] = jnp.ones((steps, batch, *mask.shape), mask.dtype)
    return NetworkInput(
        rest,
        no_actions(spec.action, (steps, batch)),
        jnp.zeros((steps, batch)),
        jnp.zeros((steps, batch), bool),
    )


def _types(core: Any) -> Any:
    return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", core)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
