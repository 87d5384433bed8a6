"""Nearly every step message, read by comparing bytes. Imports no JAX.

In the midst of episodes all of a message but its number, its rewards and its observation is as it was in the
last one about the same environments.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from zerocopy_seed.remote.codec import check_masks
from zerocopy_seed.remote.wire_format import WireFormat


@dataclasses.dataclass(frozen=True, slots=True)
class Usual:
    """A message about certain environments, all of whose rows are MID with discount 1.

    Attributes:
      wire: its format.
      num_bytes: after its number.
      known: the bytes that are always there, and where, counted from after its number.
      reward, leaves: where the arrays begin, their shapes and dtypes.
      step_type, discount: the values that it has, read-only.
    """

    wire: WireFormat
    num_bytes: int
    known: tuple[tuple[int, bytes], ...]
    reward: tuple[int, tuple[int, ...], np.dtype]
    leaves: tuple[tuple[int, tuple[int, ...], np.dtype], ...]
    step_type: np.ndarray
    discount: np.ndarray

    def read(self, data: bytes, begin: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]] | None:
        """Rewards and the observation's arrays, as read-only views; None if it is another message.

        Args:
          data: a serialised `Observations`.
          begin: where its number ends.

        Raises:
          ProtocolError: there are bools that are none.
        """
        if len(data) - begin != self.num_bytes:
            return None
        for at, known in self.known:
            if not data.startswith(known, begin + at):
                return None
        at, shape, dtype = self.reward
        reward = np.ndarray(shape, dtype, data, begin + at)
        leaves = tuple([np.ndarray(shape, dtype, data, begin + at) for at, shape, dtype in self.leaves])
        if self.wire.masks:
            check_masks(self.wire, leaves)
        return reward, leaves


def make_usual(wire: WireFormat, environment: bytes) -> Usual:
    """The usual message about environments int32 [n], which were found to be right."""
    layout = wire.layout(len(environment) // 4)
    p0, p1, p2, p3, *others = layout.prefixes
    _, _, reward, (discount_at, *_), *leaves = layout.fields
    step_types, discounts = layout.usual_bytes
    before = b"".join((p0, environment, p1, step_types, p2))
    known = [(0, before), (discount_at - len(p3), p3 + discounts)]
    known += [(at - len(prefix), prefix) for prefix, (at, _, _) in zip(others, leaves, strict=True)]
    return Usual(wire, layout.struct.size, tuple(known), reward, tuple(leaves), *layout.usual)
