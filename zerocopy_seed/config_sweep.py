"""Many runs in one configuration: `num_seeds` times the settings of `sweep`. Imports no JAX."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

from zerocopy_envs.errors import UserError, did_you_mean, nearest
from zerocopy_seed.config import Config, LearningConfig, Range
from zerocopy_seed.config_keys import as_float, describe, keys, range_of, without_range

_MAX_NAME = 200  # of a file's 255, with the seed behind it
_MAX_MEMBERS = 1024
_MAX_DRAWS = 100  # for each number, until all of them differ
_DISTRIBUTION = ("low", "high", "num")
# Floats that acting alone reads: learning would not notice another value.
_ACTING_SETTINGS = ("epsilon_base", "epsilon_alpha", "eval_epsilon")

Setting = dict[str, float]  # dotted path -> value


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of several that are trained at once.

    Attributes:
      name: of its directory: `learning_rate=0.001,seed=3`, or `seed=3` where nothing is swept.
      setting: its values of what is swept, by dotted path.
      config: its own, as if it were run alone.
    """

    name: str
    setting: Setting
    config: Config


def has_members(config: Config) -> bool:
    """Whether this is a configuration of many runs."""
    return config.num_seeds > 1 or bool(config.sweep)


def learning_settings(agent: LearningConfig) -> tuple[str, ...]:
    """Names of the float fields that learning reads, which a sweep may vary."""
    return tuple(
        field.name
        for field in dataclasses.fields(agent)
        if isinstance(field.default, float) and field.name not in _ACTING_SETTINGS
    )


def setting_name(setting: Setting) -> str:
    """`learning_rate=0.001,discount=0.9`; "" where nothing is swept."""
    return ",".join(f"{path.rpartition('.')[2]}={value!r}" for path, value in setting.items())


def make_members(config: Config) -> tuple[Member, ...]:
    """Every setting of the sweep with every seed, the seeds of a setting side by side.

    Lists are combined with each other. What is drawn is drawn together, since a grid of it would try few
    values of each; the draws follow from `seed`.

    Raises:
      UserError: naming the key: it is none that a sweep may vary, or a value is out of its range.
    """
    settings = _settings(config)
    num_members = len(settings) * config.num_seeds
    if num_members > _MAX_MEMBERS:
        raise UserError(
            "num_seeds",
            expected=f"at most {_MAX_MEMBERS:,} runs at once",
            found=f"{config.num_seeds:,} seeds of {len(settings):,} settings",
        )
    alone = dataclasses.replace(
        config, num_seeds=1, sweep={}, devices=dataclasses.replace(config.devices, learner=1)
    )
    longest = max(len(setting_name(setting)) for setting in settings)
    if longest > _MAX_NAME:
        raise UserError(
            "sweep",
            expected=f"settings whose names and values take at most {_MAX_NAME} characters, since members' "
            "directories are named after them",
            found=f"{longest} characters in {len(settings[0])} settings",
            remedy="give those of one value in [agent]",
        )
    members = []
    for setting, number in itertools.product(settings, range(config.num_seeds)):
        seed = config.seed + number
        values: Any = {path.removeprefix("agent."): value for path, value in setting.items()}
        members.append(
            Member(
                name=",".join(part for part in (setting_name(setting), f"seed={seed}") if part),
                setting=setting,
                config=dataclasses.replace(
                    alone, seed=seed, agent=dataclasses.replace(config.agent, **values)
                ),
            )
        )
    return tuple(members)


def _settings(config: Config) -> list[Setting]:
    allowed = {
        key.path: range_of(key.kind)
        for key in keys(Config, config)
        if key.path in {f"agent.{name}" for name in learning_settings(config.agent)}
    }
    lists: dict[str, list[float]] = {}
    drawn: dict[str, list[float]] = {}
    for path, values in _axes(config.sweep):
        subject = f"sweep.{path}"
        if path not in allowed:
            raise _not_varied(config, path, allowed)
        if isinstance(values, dict):
            drawn[path] = _draws(subject, values, allowed[path], config.seed)
            first = next(iter(drawn))
            if len(drawn[path]) != len(drawn[first]):
                raise UserError(
                    f"{subject}.num",
                    expected=f"{len(drawn[first])} as in sweep.{first}, since they are drawn together",
                    found=str(len(drawn[path])),
                )
        else:
            lists[path] = _listed(subject, values, allowed[path])
    together = [dict(zip(drawn, row, strict=True)) for row in zip(*drawn.values(), strict=True)] or [{}]
    return [
        dict(zip(lists, values, strict=True)) | draw
        for values in itertools.product(*lists.values())
        for draw in together
    ]


def _axes(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, what is to be tried) of every key, written `"agent.discount"`, or as tables in tables."""
    for name, inner in table.items():
        path = f"{prefix}{name}"
        if isinstance(inner, dict) and not set(_DISTRIBUTION) & set(inner):
            yield from _axes(inner, f"{path}.")
        else:
            yield path, inner


def _not_varied(config: Config, path: str, allowed: dict[str, Any]) -> UserError:
    expected = "a float setting of the agent that learning reads"
    kinds = {key.path: without_range(key.kind) for key in keys(Config, config)}
    if path == "seed":
        return UserError("sweep.seed", expected=expected, found="an integer", remedy="set num_seeds instead")
    if path in kinds:
        found = "one that acting alone reads" if path.startswith("agent.") and kinds[path] is float else ""
        return UserError(f"sweep.{path}", expected=expected, found=found or describe(kinds[path]))
    last = {name.rpartition(".")[2]: name for name in allowed}
    near = last.get(nearest(path.rpartition(".")[2], last))
    remedy = f"did you mean {near}?" if near else did_you_mean(path, allowed)
    return UserError(f"sweep.{path}", expected=expected, found="an unknown key", remedy=remedy)


def _listed(subject: str, values: Any, allowed: Range | None) -> list[float]:
    if not isinstance(values, list) or not values:
        number = type(values) in (int, float)
        raise UserError(
            subject,
            expected="a list of numbers, or a table with low, high and num",
            found=repr(values),
            remedy=f"write [{values}]" if number else "",
        )
    numbers = [_number(f"{subject}[{place}]", value, allowed) for place, value in enumerate(values)]
    for place, value in enumerate(numbers):
        if value in numbers[:place]:
            raise UserError(
                f"{subject}[{place}]",
                expected="each value once",
                found=f"{value!r} again",
                remedy="leave it out",
            )
    return numbers


def _draws(subject: str, table: dict[str, Any], allowed: Range | None, seed: int) -> list[float]:
    """Numbers whose logarithm is uniform, to four digits, so that names and files tell all of them."""
    for name in (*_DISTRIBUTION, *table):
        if name not in table or name not in _DISTRIBUTION:
            raise UserError(
                f"{subject}.{name}",
                expected="a table with low, high and num",
                found="an unknown key" if name in table else "nothing",
            )
    low, high = (_number(f"{subject}.{name}", table[name], allowed) for name in ("low", "high"))
    if not 0.0 < low < high < math.inf:
        raise UserError(
            subject,
            expected="0 < low < high < inf, to draw between on a logarithmic scale",
            found=f"{low}, {high}",
        )
    num = table["num"]
    if type(num) is not int or not 1 <= num <= _MAX_MEMBERS:
        raise UserError(f"{subject}.num", expected=f"an integer from 1 to {_MAX_MEMBERS:,}", found=repr(num))
    # Python keeps this generator's numbers from version to version; so a resumed run draws them again.
    generator = random.Random(f"{seed} {subject}")
    span = math.log(high / low)
    draws: dict[float, None] = {}
    for _ in range(_MAX_DRAWS * num):
        exact = low * math.exp(span * generator.random())
        draws[min(max(float(f"{exact:.4g}"), low), high)] = None
        if len(draws) == num:
            return list(draws)
    raise UserError(
        f"{subject}.num",
        expected=f"at most the {len(draws)} numbers that differ in four digits",
        found=str(num),
    )


def _number(subject: str, value: Any, allowed: Range | None) -> float:
    if type(value) not in (int, float):
        raise UserError(subject, expected="a number", found=repr(value))
    if allowed is not None and value not in allowed:
        raise UserError(subject, expected=str(allowed), found=str(value))
    return as_float(subject, value)
