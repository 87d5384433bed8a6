"""Environments by name: `suite:name` and `package.module:factory`.

Imports no JAX, and no suite until it is asked for.

A third party's package registers with the entry point group `zerocopy_seed.environments`: the entry point's
name is the suite's, its object a `Suite`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from zerocopy_envs.ale_games import NUM_ACTIONS
from zerocopy_envs.brax_backends import backend_notes, working_environments
from zerocopy_envs.errors import UserError, did_you_mean, known, users_code
from zerocopy_envs.playground_names import NAMES as PLAYGROUND_NAMES
from zerocopy_envs.settings import check_settings, signature_settings
from zerocopy_envs.suite_names import (
    CRAFTAX_NAMES,
    JAXTARI_NAMES,
    JUMANJI_NAMES,
    NAVIX_NAMES,
    OCTAX_NAMES,
    PGX_NAMES,
    XMINIGRID_NAMES,
)
from zerocopy_envs.types import EnvironmentSpec

ENTRY_POINT_GROUP = "zerocopy_seed.environments"

Factory = str | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Suite:
    """Environments that share a factory.

    Attributes:
      names: the environments' names within the suite.
      factory: called as `factory(name, **settings)`; or where it is, as `package.module:function`, which is
        imported when the first environment is made. For host environments it takes `num_envs` too.
      install: the command that installs what the factory imports, for the error when that is missing.
      accepts_others: whether the factory makes more than `names`; it then refuses unknown ones itself.
      notes: what a listing says of some of `names` beside their shapes, and of others why they do not run.
    """

    names: tuple[str, ...]
    factory: Factory
    install: str = ""
    accepts_others: bool = False
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)


GYMNAX_NAMES = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "MemoryChain-bsuite",
    "UmbrellaChain-bsuite",
    "DiscountingChain-bsuite",
    "SimpleBandit-bsuite",
    "FourRooms-misc",
    "MetaMaze-misc",
    "PointRobot-misc",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "Reacher-misc",
    "Swimmer-misc",
    "Pong-misc",
    "FrozenLake-misc",
)
"""All of gymnax 1.0.1 but MNISTBandit, which downloads data. Kept here so that listing imports nothing."""

GYMNASIUM_NAMES = (
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Acrobot-v1",
    "Blackjack-v1",
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "CliffWalking-v1",
    "CliffWalkingSlippery-v1",
    "Taxi-v4",
)
"""Those of Gymnasium 1.3 that need nothing else. The suite makes whatever else is registered there."""

ENVPOOL_NAMES = (
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Acrobot-v1",
    "Pong-v5",
    "Breakout-v5",
)
"""Some of EnvPool's. The suite makes whatever else it has."""

_LEARNER = 'pip install "zerocopy_seed[learner]"'
_BRAX = 'pip install "zerocopy_seed[brax]"'
_PLAYGROUND = 'pip install "zerocopy_seed[playground]"'
_ATARI = 'pip install "zerocopy_seed[atari]"'
_ENVPOOL = 'pip install "zerocopy_seed[envpool]"'


def _optional(suite: str, names: tuple[str, ...], accepts_others: bool = False) -> Suite:
    """A suite whose extra, adapter and own name are alike."""
    install = f'pip install "zerocopy_seed[{suite}]"'
    return Suite(names, f"zerocopy_envs.{suite}_suite:make_environment", install, accepts_others)


_suites: dict[str, Suite] = {
    "zerocopy": Suite(("Catch",), "zerocopy_envs.catch:make_environment", _LEARNER),
    "gymnax": Suite(GYMNAX_NAMES, "zerocopy_envs.gymnax_suite:make_environment", _LEARNER),
    "brax": Suite(
        working_environments(), "zerocopy_envs.brax_suite:make_environment", _BRAX, True, backend_notes()
    ),
    "playground": Suite(PLAYGROUND_NAMES, "zerocopy_envs.playground_suite:make_environment", _PLAYGROUND),
    "gymnasium": Suite(GYMNASIUM_NAMES, "zerocopy_envs.gymnasium_suite:make_environment", _ATARI, True),
    "envpool": Suite(ENVPOOL_NAMES, "zerocopy_envs.envpool_suite:make_environment", _ENVPOOL, True),
    "ale": Suite(tuple(NUM_ACTIONS), "zerocopy_envs.ale_suite:make_environment", _ATARI),
    "craftax": _optional("craftax", CRAFTAX_NAMES),
    "navix": _optional("navix", NAVIX_NAMES, accepts_others=True),
    "xminigrid": _optional("xminigrid", XMINIGRID_NAMES),
    "jumanji": _optional("jumanji", JUMANJI_NAMES),
    "pgx": _optional("pgx", PGX_NAMES),
    "octax": _optional("octax", OCTAX_NAMES),
    "jaxtari": _optional("jaxtari", JAXTARI_NAMES),
}


def register(suite: str, factory: Factory, names: Iterable[str], *, install: str = "") -> None:
    """Adds a suite for this process; see `Suite` for the arguments.

    Raises:
      UserError: the suite's name is taken or cannot be written before a colon.
    """
    if not suite or ":" in suite:
        raise UserError(f"suite {suite!r}", expected="a name without a colon")
    if suite in _suites:
        raise UserError(f"suite {suite!r}", expected="a name that is not taken", remedy="choose another")
    _suites[suite] = Suite(tuple(names), factory, install)


def suite_names() -> tuple[str, ...]:
    """Names of all suites, installed ones of third parties included; imports none of them."""
    return tuple(dict.fromkeys((*_suites, *_entry_points())))


def environment_names(suite: str) -> tuple[str, ...]:
    """Full names (`suite:name`) of a suite's environments."""
    return tuple(f"{suite}:{name}" for name in find_suite(suite).names)


def find_suite(name: str) -> Suite:
    """The suite of that name; a third party's is imported here.

    Raises:
      UserError: there is none, with the nearest name, or its package does not import.
    """
    if name in _suites:
        return _suites[name]
    entry_points = _entry_points()
    if name not in entry_points:
        remedy = did_you_mean(name, suite_names()) or known(suite_names())
        raise UserError(f"suite {name!r}", expected="a registered suite", remedy=remedy)
    try:
        suite = entry_points[name].load()
    except Exception as error:
        raise UserError(
            f"suite {name!r}",
            expected=f"its entry point {entry_points[name].value!r} to import",
            found=f"{type(error).__name__}: {error}",
        ) from error
    if not isinstance(suite, Suite):
        raise UserError(
            f"suite {name!r}",
            expected=f"a zerocopy_envs.Suite at {entry_points[name].value!r}",
            found=type(suite).__name__,
        )
    return suite


def names_a_module(name: str) -> bool:
    """Whether to make this environment imports a module that its name gives: `package.module:factory`, or
    `gymnasium:module:id`. Of all others what is imported was installed as a suite.
    """
    suite, _, rest = name.partition(":")
    return suite not in suite_names() or ":" in rest


def make(name: str, **settings: Any) -> Any:
    """Makes an environment: an `Environment`, a `HostEnvironment` or a spec alone, see `environment_kind`.

    Args:
      name: `suite:name`, or `package.module:factory` of anything importable; a registered suite wins.
      **settings: passed to the factory.

    Raises:
      UserError: an unknown name or setting, with the nearest right one; a missing package, with the command
        that installs it; or a factory that returns something else than an environment.
    """
    prefix, colon, rest = name.partition(":")
    if not colon or not rest or not prefix or prefix.startswith("."):
        raise UserError(
            f"environment {name!r}",
            expected="suite:name or package.module:factory",
            remedy=_nearest_environment(name),
        )
    if prefix in suite_names():
        suite = find_suite(prefix)
        if rest not in suite.names and not suite.accepts_others:
            raise UserError(
                f"environment {name!r}",
                expected=f"an environment of suite {prefix!r}",
                remedy=did_you_mean(rest, suite.names) or known(suite.names),
            )
        factory = functools.partial(_load_suite_factory(name, suite), rest)
    else:
        factory = _load_user_factory(name)
    defaults = signature_settings(factory)
    if defaults is not None:
        check_settings(name, settings, defaults)
    with users_code(f"environment {name!r}", "its factory to make it"):
        environment = factory(**settings)
    environment_kind(environment, name)
    return environment


def environment_kind(environment: Any, name: str = "") -> Literal["jax", "host", "spec"]:
    """Whether this is an `Environment` (jax), a `HostEnvironment` (host) or an `EnvironmentSpec` (spec).

    A spec alone stands for simulators that own their loop and join a learner by themselves.

    Raises:
      UserError: it is neither.
    """
    subject = f"environment {name!r}" if name else f"environment {type(environment).__name__}"
    if isinstance(environment, EnvironmentSpec):
        return "spec"
    if isinstance(getattr(environment, "spec", None), EnvironmentSpec):
        if all(hasattr(environment, method) for method in ("num_envs", "reset", "send", "recv", "close")):
            return "host"
        if all(hasattr(environment, method) for method in ("reset", "step")):
            return "jax"
    raise UserError(
        subject,
        expected="a spec (EnvironmentSpec), and reset and step, or num_envs, reset, send, recv and close; "
        "or an EnvironmentSpec alone",
        found=f"{type(environment).__name__}",
    )


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    return {entry_point.name: entry_point for entry_point in found if entry_point.name not in _suites}


def _nearest_environment(name: str) -> str:
    names = [f"{suite}:{inner}" for suite in _suites for inner in _suites[suite].names]
    return did_you_mean(name, names) or "see `zerocopy-seed envs`"


def _load_suite_factory(name: str, suite: Suite) -> Callable[..., Any]:
    if callable(suite.factory):
        return suite.factory
    module, _, attribute = suite.factory.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise UserError(
            f"environment {name!r}",
            expected="its package to be installed",
            found=str(error),
            remedy=suite.install or "install it",
        ) from error


def _load_user_factory(name: str) -> Callable[..., Any]:
    path, _, attribute = name.partition(":")
    try:
        with users_code(f"environment {name!r}", f"{path} to import"):
            module = importlib.import_module(path)
    except UserError as failure:
        error = failure.__cause__
        if not isinstance(error, ImportError):
            raise
        missing = getattr(error, "name", None) or ""
        if path == missing or path.startswith(f"{missing}."):
            near = did_you_mean(path, suite_names()) if "." not in path else ""
            raise UserError(
                f"environment {name!r}",
                expected="a registered suite or an importable module before the colon",
                found=f"no module {missing!r}",
                remedy=near or "run from its folder, or put that on PYTHONPATH",
            ) from error
        raise UserError(f"environment {name!r}", expected=f"{path} to import", found=str(error)) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        functions = [public for public in vars(module) if not public.startswith("_")]
        raise UserError(
            f"environment {name!r}",
            expected=f"a factory in {path}",
            found=f"no callable {attribute!r}",
            remedy=did_you_mean(attribute, functions) if factory is None else "",
        )
    return factory
