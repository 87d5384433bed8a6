"""What an environment's spec says of the bytes of its step messages. Imports no JAX."""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import NamedTuple

import numpy as np

from zerocopy_envs.trees import named_leaves
from zerocopy_envs.types import BoundedAction, EnvironmentSpec, MultiDiscreteAction

_LITTLE = "<"
ROW_FIELDS = (
    ("environment", np.dtype("<i4")),
    ("step_type", np.dtype("i1")),
    ("reward", np.dtype("<f4")),
    ("discount", np.dtype("<f4")),
)
"""Fields of an `Observations` message besides its observation: name and dtype."""


class Layout(NamedTuple):
    """A message of n rows after its request number: environment, step_type, reward, discount, leaves.

    Attributes:
      prefixes: what stands before the bytes of each field: tag and size.
      fields: where the bytes of each field begin, its shape and dtype.
      struct: reads the prefixes, and after each the bytes of those fields whose values are checked.
      usual: step_type and discount of nearly every message: MID and 1; read-only.
      usual_bytes: the same as bytes.
    """

    prefixes: tuple[bytes, ...]
    fields: tuple[tuple[int, tuple[int, ...], np.dtype], ...]
    struct: struct.Struct
    usual: tuple[np.ndarray, np.ndarray]
    usual_bytes: tuple[bytes, bytes]


@dataclasses.dataclass(frozen=True)
class WireFormat:
    """What a spec says of the bytes of its messages.

    Attributes:
      paths: of the observation's arrays, in wire order (that of `named_leaves`).
      dtypes: of each.
      shapes: of each, without rows.
      action_dtype: int32 or float32.
      action_shape: without rows.
      masks: which of the arrays are bool.
    """

    paths: tuple[str, ...]
    dtypes: tuple[np.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]
    action_dtype: np.dtype
    action_shape: tuple[int, ...]
    masks: tuple[int, ...]
    _layouts: dict[int, Layout] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    _action_layouts: dict[int, tuple[bytes, int, tuple[int, ...]]] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )
    _counting: dict[int, bytes] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def observation_bytes(self) -> int:
        """Of one row of the observation."""
        return sum(
            dtype.itemsize * math.prod(shape) for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        )

    @property
    def row_bytes(self) -> int:
        """Of one row of all fields of an `Observations` message."""
        return self.observation_bytes + sum(dtype.itemsize for _, dtype in ROW_FIELDS)

    @property
    def action_bytes(self) -> int:
        """Of one row of actions."""
        return self.action_dtype.itemsize * math.prod(self.action_shape)

    @property
    def field_names(self) -> tuple[str, ...]:
        """Of every array of an `Observations` message, in wire order."""
        return (*(name for name, _ in ROW_FIELDS), *self.paths)

    def max_message_bytes(self, num_rows: int) -> int:
        """An upper bound of the size of an `Observations` message."""
        return num_rows * self.row_bytes + 11 * (len(self.field_names) + 1)

    def layout(self, num_rows: int) -> Layout:
        """Where things are in a message of `num_rows` rows (which the caller has found sensible)."""
        found = self._layouts.get(num_rows)
        if found is None:
            found = self._layouts[num_rows] = _make_layout(self, num_rows)
        return found

    def action_layout(self, num_rows: int) -> tuple[bytes, int, tuple[int, ...]]:
        """Of `Actions` after their number: what stands before the array, the bytes of both, its shape."""
        found = self._action_layouts.get(num_rows)
        if found is None:
            num_bytes = num_rows * self.action_bytes
            prefix = b"\x12" + varint(num_bytes)
            found = prefix, len(prefix) + num_bytes, (num_rows, *self.action_shape)
            self._action_layouts[num_rows] = found
        return found

    def counting(self, num_environments: int) -> bytes:
        """int32 0, 1, ... `num_environments` - 1, as bytes."""
        found = self._counting.get(num_environments)
        if found is None:
            found = self._counting[num_environments] = np.arange(num_environments, dtype="<i4").tobytes()
        return found


def make_wire_format(spec: EnvironmentSpec) -> WireFormat:
    """The wire format of an environment's messages."""
    named = list(named_leaves(spec.observation))
    action = spec.action
    if isinstance(action, BoundedAction):
        action_dtype, action_shape = np.dtype("<f4"), action.shape
    else:
        action_dtype = np.dtype("<i4")
        action_shape = (len(action.num_values),) if isinstance(action, MultiDiscreteAction) else ()
    return WireFormat(
        paths=tuple(path for path, _ in named),
        dtypes=tuple(leaf.dtype.newbyteorder(_LITTLE) for _, leaf in named),
        shapes=tuple(leaf.shape for _, leaf in named),
        action_dtype=action_dtype,
        action_shape=action_shape,
        masks=tuple(i for i, (_, leaf) in enumerate(named) if leaf.dtype == np.bool_),
    )


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _make_layout(wire: WireFormat, num_rows: int) -> Layout:
    arrays = [(2 + i, dtype, ()) for i, (_, dtype) in enumerate(ROW_FIELDS)]
    arrays += [(6, dtype, shape) for dtype, shape in zip(wire.dtypes, wire.shapes, strict=True)]
    prefixes, fields, form, at = [], [], "<", 0
    for number, dtype, shape in arrays:
        num_bytes = num_rows * dtype.itemsize * math.prod(shape)
        # proto3 leaves out what is empty, unless it is repeated
        prefix = bytes([number << 3 | 2]) + varint(num_bytes) if num_bytes or number == 6 else b""
        prefixes.append(prefix)
        fields.append((at + len(prefix), (num_rows, *shape), dtype))
        form += f"{len(prefix)}s{num_bytes}{'s' if number in (2, 3, 5) else 'x'}"
        at += len(prefix) + num_bytes
    usual_bytes = b"\x01" * num_rows, np.ones(num_rows, "<f4").tobytes()
    usual = np.frombuffer(usual_bytes[0], np.int8), np.frombuffer(usual_bytes[1], "<f4")
    return Layout(tuple(prefixes), tuple(fields), struct.Struct(form), usual, usual_bytes)
