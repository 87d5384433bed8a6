"""The step messages of bridge.proto, read and written without copies. Imports no JAX.

What is written is byte for byte what the generated code writes. What is read may be any legal encoding: the
generated code's own is read here, others (fields in another order, unknown fields) by its parser.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from zerocopy_envs.trees import leaves
from zerocopy_envs.types import TimeStep
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.errors import ProtocolError
from zerocopy_seed.remote.wire_format import ROW_FIELDS, Layout, WireFormat, varint

OBSERVATIONS_GOODBYE = b"\x38\x01"
"""The message with which an actor leaves."""
ACTIONS_GOODBYE = b"\x18\x01"
"""The message with which a run ends."""

_ONE = 0x3F800000  # the bits of 1.0; floats from 0 to 1 are ordered as their bits are


class Observations(NamedTuple):
    """One step of n of an actor's environments.

    Attributes:
      request: number that the answer must bear.
      environment: int32 [n], all different, as the bytes that they are on the wire: a key to know them by.
      step_type: int8 [n].
      reward: float32 [n].
      discount: float32 [n].
      leaves: arrays [n, ...] of the observation, in wire order.
      is_usual: every row is MID, and its discount 1.
      goodbye: the actor leaves; nothing else is set.
    """

    request: int
    environment: bytes
    step_type: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    leaves: tuple[np.ndarray, ...]
    is_usual: bool = False
    goodbye: bool = False


class Actions(NamedTuple):
    """The answer: `action` [n, ...] in the order of the request's rows; or the run's end."""

    request: int
    action: np.ndarray
    goodbye: bool = False


def encode_observations(wire: WireFormat, request: int, environment: np.ndarray, timestep: TimeStep) -> bytes:
    """An `Observations` message.

    Args:
      wire: the format agreed upon.
      request: number that the answer will bear.
      environment: int32 [n].
      timestep: [n]; its observation a pytree as in the spec, or a tuple of its leaves in wire order.

    Raises:
      ProtocolError: an array does not fit the format.
    """
    num_rows = len(environment)
    layout = wire.layout(num_rows)
    arrays = [environment, timestep.step_type, timestep.reward, timestep.discount]
    observation = timestep.observation
    arrays += [observation] if isinstance(observation, np.ndarray) else leaves(observation)
    if len(arrays) != len(layout.fields):
        raise ProtocolError("observation", ", ".join(wire.paths), f"{len(arrays) - len(ROW_FIELDS)} arrays")
    parts: list[Any] = [_request_prefix(request)]  # of what has bytes
    for i, (prefix, (_, shape, dtype)) in enumerate(zip(layout.prefixes, layout.fields, strict=True)):
        array = arrays[i]
        if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
            array = _fit(wire.field_names[i], array, shape, dtype)
        parts.append(prefix)
        parts.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
    return b"".join(parts)


def decode_observations(wire: WireFormat, data: bytes, num_environments: int) -> Observations:
    """Reads an `Observations` message; arrays are read-only views of `data`.

    Args:
      wire: the format agreed upon.
      data: the message.
      num_environments: of the actor.

    Raises:
      ProtocolError: sizes, indices or flags that are wrong; nothing has been allocated by then.
    """
    request, start = read_request(data)
    num_rows = _read_num_rows(data, start)
    if not 0 < num_rows <= num_environments:
        return _parse_observations(wire, data, num_environments)
    layout = wire.layout(num_rows)
    if len(data) - start != layout.struct.size:
        return _parse_observations(wire, data, num_environments)
    p0, environment_bytes, p1, step_type_bytes, p2, p3, discount_bytes, *rest = layout.struct.unpack_from(
        data, start
    )
    if (p0, p1, p2, p3, *rest) != layout.prefixes:
        return _parse_observations(wire, data, num_environments)
    _, _, (at, shape, dtype), _, *others = layout.fields
    reward = np.ndarray(shape, dtype, data, start + at)
    observation = tuple([np.ndarray(shape, dtype, data, start + at) for at, shape, dtype in others])
    return _checked(
        wire,
        num_environments,
        request,
        layout,
        (environment_bytes, step_type_bytes, discount_bytes),
        reward,
        observation,
    )


def encode_actions(wire: WireFormat, request: int, action: np.ndarray) -> bytes:
    """An `Actions` message of `action` [n, ...], in the dtype of the format.

    Raises:
      ProtocolError: the array does not fit the format.
    """
    fits = type(action) is np.ndarray and action.dtype is wire.action_dtype  # equality takes far longer
    if not fits or action.shape[1:] != wire.action_shape:
        action = _fit("action", action, (len(action), *wire.action_shape), wire.action_dtype)
    data = action.tobytes()
    if not data:
        return _request_prefix(request)
    return b"%b\x12%b%b" % (_request_prefix(request), varint(len(data)), data)


def decode_actions(wire: WireFormat, data: bytes, num_rows: int) -> Actions:
    """Reads an `Actions` message that answers `num_rows` rows; the array is a read-only view of `data`.

    Raises:
      ProtocolError: the size is wrong.
    """
    request, start = read_request(data)
    prefix, num_bytes, shape = wire.action_layout(num_rows)
    if data.startswith(prefix, start) and len(data) == start + num_bytes:
        return Actions(request, np.ndarray(shape, wire.action_dtype, data, start + len(prefix)))
    message = _parse(bridge_pb2.Actions, data)
    if message.goodbye:
        return Actions(message.request, np.empty((0, *wire.action_shape), wire.action_dtype), True)
    return Actions(
        message.request, _view("action", message.action, (num_rows, *wire.action_shape), wire.action_dtype)
    )


def request_of(data: bytes) -> int:
    """The request number of an `Actions` message.

    Raises:
      ProtocolError: it is none.
    """
    request, end = read_request(data)
    return request if end else _parse(bridge_pb2.Actions, data).request


def _request_prefix(request: int) -> bytes:
    return b"\x08" + varint(request) if request else b""


def read_request(data: bytes) -> tuple[int, int]:
    """A message's number, field 1, and its end, if it comes first; (0, 0) where the parser must look."""
    if len(data) < 2 or data[0] != 0x08:
        return 0, 0
    if data[1] < 0x80:
        return data[1], 2
    value = 0
    for place, byte in enumerate(data[1:10]):  # a tenth byte may overflow
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, place + 2
    return 0, 0


def _read_num_rows(data: bytes, start: int) -> int:
    """Rows in the field `environment` if it stands at `start`; else 0."""
    if data[start : start + 1] != b"\x12":
        return 0
    num_bytes = 0
    for place, byte in enumerate(data[start + 1 : start + 6]):
        num_bytes |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return num_bytes // 4
    return 0


def _parse_observations(wire: WireFormat, data: bytes, num_environments: int) -> Observations:
    """By the generated parser: any legal encoding, and what is wrong with illegal ones."""
    message = _parse(bridge_pb2.Observations, data)
    parts = [message.environment, message.step_type, message.reward, message.discount]
    if message.goodbye:
        step_type, reward, discount = (np.empty(0, dtype) for _, dtype in ROW_FIELDS[1:])
        return Observations(message.request, b"", step_type, reward, discount, (), goodbye=True)
    num_rows = len(message.environment) // 4
    if not 0 < num_rows <= num_environments or len(message.environment) % 4:
        raise ProtocolError(
            "environment", f"4 bytes for each of 1 to {num_environments} rows", _size(message.environment)
        )
    if len(message.observation) != len(wire.paths):
        raise ProtocolError("observation", f"{len(wire.paths)} arrays", str(len(message.observation)))
    layout = wire.layout(num_rows)
    _, _, reward, _, *observation = [
        _view(name, part, shape, dtype)
        for name, part, (_, shape, dtype) in zip(
            wire.field_names, [*parts, *message.observation], layout.fields, strict=True
        )
    ]
    checked = parts[0], parts[1], parts[3]
    return _checked(wire, num_environments, message.request, layout, checked, reward, tuple(observation))


def _checked(
    wire: WireFormat,
    num_environments: int,
    request: int,
    layout: Layout,
    parts: tuple[bytes, bytes, bytes],
    reward: np.ndarray,
    observation: tuple[np.ndarray, ...],
) -> Observations:
    """The message, if its values are such as a server relies on; there are shortcuts for the usual ones."""
    environment, step_type_bytes, discount_bytes = parts
    first = int.from_bytes(environment[:4], "little")
    if environment != wire.counting(num_environments)[4 * first : 4 * first + len(environment)]:
        _check_environment(np.frombuffer(environment, "<i4"), num_environments)
    check_masks(wire, observation)
    if (step_type_bytes, discount_bytes) == layout.usual_bytes:
        step_type, discount = layout.usual
        return Observations(request, environment, step_type, reward, discount, observation, True)
    if wrong := step_type_bytes.translate(None, b"\x00\x01\x02"):
        raise ProtocolError("step_type", "0, 1 or 2", str(int(np.frombuffer(wrong, np.int8)[0])))
    step_type, discount = np.frombuffer(step_type_bytes, np.int8), np.frombuffer(discount_bytes, "<f4")
    if np.maximum.reduce(discount.view("<u4")) > _ONE:
        outside = ~((discount >= 0) & (discount <= 1))  # -0.0 and NaN come here too
        if outside.any():
            raise ProtocolError("discount", "0 to 1", str(discount[outside][0]))
    return Observations(request, environment, step_type, reward, discount, observation)


def check_masks(wire: WireFormat, observation: tuple[np.ndarray, ...]) -> None:
    """Looks at the bool arrays of an observation.

    Raises:
      ProtocolError: they have bytes other than 0 and 1.
    """
    for i in wire.masks:
        most = np.max(observation[i].view(np.uint8), initial=0)
        if most > 1:
            raise ProtocolError(wire.paths[i], "bytes 0 or 1", str(most))


def _check_environment(environment: np.ndarray, num_environments: int) -> None:
    least, most = int(environment.min()), int(environment.max())
    if least < 0 or most >= num_environments:
        found = str(least if least < 0 else most)
        raise ProtocolError("environment", f"0 to {num_environments - 1}", found)
    if len(np.unique(environment)) != len(environment):
        raise ProtocolError("environment", "each at most once", f"{_first_repeated(environment)} twice")


def _first_repeated(environment: np.ndarray) -> int:
    values, counts = np.unique(environment, return_counts=True)
    return int(values[counts > 1][0])


def _parse(kind: type, data: bytes):
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ProtocolError(
            kind.__name__, f"a message of zerocopy_seed.v1.{kind.__name__}", f"{len(data)} other bytes"
        ) from error
    return message


def _view(name: str, data: bytes, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    num_bytes = dtype.itemsize * math.prod(shape)
    if len(data) != num_bytes:
        raise ProtocolError(name, f"{dtype.name}{list(shape)} ({num_bytes} bytes)", _size(data))
    return np.ndarray(shape, dtype, data)


def _fit(name: str, array: object, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array if only its class kept it from fitting (a JAX array, a subclass)."""
    converted = np.asarray(array)
    if converted.shape != shape or converted.dtype != dtype:
        raise ProtocolError(
            name, f"{dtype.name}{list(shape)}", f"{converted.dtype.name}{list(converted.shape)}"
        )
    return converted


def _size(data: bytes) -> str:
    return f"{len(data)} byte{'' if len(data) == 1 else 's'}"
