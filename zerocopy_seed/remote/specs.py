"""Environment specs as messages, and what differs between two of them. Imports no JAX."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.trees import named_leaves
from zerocopy_envs.types import (
    ActionSpec,
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
)
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.errors import ProtocolError

_DTYPES = {
    name: np.dtype(name)
    for name in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    + ("float16", "float32", "float64")
}
_MAX_PATH = 1000  # so that neither depth nor indices are without bounds
_STEP = re.compile(r'\.(?P<name>[^.\[\]"]*)|\[(?:(?P<index>0|[1-9]\d*)|(?P<quoted>"(?:[^"\\]|\\.)*"))\]')


class Difference(NamedTuple):
    """The first field in which two specs differ."""

    field: str
    expected: str
    found: str


def spec_to_message(spec: EnvironmentSpec) -> bridge_pb2.Spec:
    """The message; its arrays are in the order of `named_leaves`.

    Raises:
      UserError: an observation whose dtype or names have no counterpart in the protocol.
    """
    message = bridge_pb2.Spec(max_episode_steps=spec.max_episode_steps or 0, action_repeat=spec.action_repeat)
    _require_string_keys(spec.observation, "observation")
    for path, leaf in named_leaves(spec.observation):
        if leaf.dtype.name not in _DTYPES:
            raise UserError(f"spec.{path}", expected=f"one of {', '.join(_DTYPES)}", found=str(leaf.dtype))
        message.observation.add(
            path=path, shape=leaf.shape, dtype=leaf.dtype.name, minimum=leaf.minimum, maximum=leaf.maximum
        )
    action = spec.action
    if isinstance(action, DiscreteAction):
        message.discrete.num_values = action.num_values
    elif isinstance(action, MultiDiscreteAction):
        message.multi_discrete.num_values.extend(action.num_values)
    else:
        message.bounded.SetInParent()
        message.bounded.shape.extend(action.shape)
    return message


def spec_from_message(message: bridge_pb2.Spec) -> EnvironmentSpec:
    """The spec; tuples, lists and NamedTuples of the original are tuples here.

    Raises:
      ProtocolError: naming the field.
    """
    paths: dict[str, ArraySpec] = {}
    for array in message.observation:
        if array.dtype not in _DTYPES:
            raise ProtocolError(f"spec.{array.path}.dtype", f"one of {', '.join(_DTYPES)}", repr(array.dtype))
        if array.path in paths:
            raise ProtocolError("spec.observation", "each path once", f"{array.path!r} twice")
        paths[array.path] = ArraySpec(
            tuple(array.shape),
            _DTYPES[array.dtype],
            array.minimum if array.HasField("minimum") else None,
            array.maximum if array.HasField("maximum") else None,
        )
    observation = _nest({tuple(_split(path)): leaf for path, leaf in paths.items()}, "observation")
    return EnvironmentSpec(
        observation, _action(message), message.max_episode_steps or None, message.action_repeat or 1
    )


def first_difference(expected: EnvironmentSpec, found: EnvironmentSpec) -> Difference | None:
    """What keeps an environment of spec `found` from being driven by an agent made for `expected`.

    Arrays are matched by path. Bounds, `max_episode_steps` and `action_repeat` may differ.
    """
    wanted, there = dict(named_leaves(expected.observation)), dict(named_leaves(found.observation))
    if wanted.keys() != there.keys():
        return Difference("observation", ", ".join(wanted), ", ".join(there))
    for path, leaf in wanted.items():
        if (leaf.dtype, leaf.shape) != (there[path].dtype, there[path].shape):
            return Difference(path, _describe(leaf), _describe(there[path]))
    if expected.action != found.action:
        return Difference("action", str(expected.action), str(found.action))
    return None


def _action(message: bridge_pb2.Spec) -> ActionSpec:
    match message.WhichOneof("action"):
        case "discrete":
            sizes, action = (message.discrete.num_values,), DiscreteAction(message.discrete.num_values)
        case "multi_discrete":
            sizes = tuple(message.multi_discrete.num_values)
            action = MultiDiscreteAction(sizes)
        case "bounded":
            sizes = tuple(message.bounded.shape)
            action = BoundedAction(sizes)
        case _:
            raise ProtocolError("spec.action", "discrete, multi_discrete or bounded", "none")
    if not sizes or min(sizes) < 1:
        raise ProtocolError("spec.action", "at least one action", str(action))
    return action


def _split(path: str) -> list[str | int]:
    """`observation.camera[0]` as `["camera", 0]`."""
    steps, end = [], len("observation")
    if len(path) > _MAX_PATH:
        raise ProtocolError("spec.observation", f"paths of at most {_MAX_PATH} characters", f"{len(path)}")
    if path.startswith("observation"):
        while match := _STEP.match(path, end):
            name, index, quoted = match.group("name", "index", "quoted")
            steps.append(name if name is not None else int(index) if index else _unquote(path, quoted))
            end = match.end()
        if end == len(path):
            return steps
    raise ProtocolError("spec.observation", 'paths such as "observation.camera[0]"', repr(path))


def _unquote(path: str, quoted: str) -> str:
    try:
        return json.loads(quoted)
    except ValueError as error:
        raise ProtocolError("spec.observation", "quoted keys as in JSON", repr(path)) from error


def _nest(arrays: dict[tuple[str | int, ...], ArraySpec], path: str) -> Any:
    """The pytree whose leaves have these paths; an observation without arrays is an empty tuple."""
    if () in arrays and len(arrays) == 1:
        return arrays[()]
    inner: dict[str | int, dict[tuple[str | int, ...], ArraySpec]] = {}
    for steps, leaf in arrays.items():
        if not steps:
            raise ProtocolError(f"spec.{path}", "an array, or arrays below it", "both")
        inner.setdefault(steps[0], {})[steps[1:]] = leaf
    if all(isinstance(key, str) for key in inner) and inner:
        return {key: _nest(below, f"{path}.{key}") for key, below in inner.items()}
    if set(inner) != set(range(len(inner))):
        raise ProtocolError(f"spec.{path}", "names, or indices from 0 on", ", ".join(map(str, inner)))
    return tuple(_nest(inner[i], f"{path}[{i}]") for i in range(len(inner)))


def _require_string_keys(tree: Any, path: str) -> None:
    items = (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple | list) else ()
    )
    for key, item in items:
        if isinstance(tree, dict) and not isinstance(key, str):
            raise UserError(f"spec.{path}", expected="keys that are strings", found=repr(key))
        _require_string_keys(item, f"{path}.{key}")


def _describe(leaf: ArraySpec) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
