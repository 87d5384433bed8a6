"""Environments under one contract, by name. Imports no JAX: what needs it (`wrappers`) is imported apart."""

from zerocopy_envs.errors import UserError
from zerocopy_envs.listing import EnvironmentRow, describe_environments
from zerocopy_envs.registry import Suite, environment_kind, environment_names, make, register, suite_names
from zerocopy_envs.types import (
    ActionSpec,
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    Environment,
    EnvironmentSpec,
    HostEnvironment,
    MultiDiscreteAction,
    StepType,
    TimeStep,
)

__all__ = [
    "ActionSpec",
    "ArraySpec",
    "BoundedAction",
    "DiscreteAction",
    "Environment",
    "EnvironmentRow",
    "EnvironmentSpec",
    "HostEnvironment",
    "MultiDiscreteAction",
    "StepType",
    "Suite",
    "TimeStep",
    "UserError",
    "describe_environments",
    "environment_kind",
    "environment_names",
    "make",
    "register",
    "suite_names",
]
