"""What the devices of a mesh exchange, read from a compiled program."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_INSTRUCTION = re.compile(
    r"= (?P<type>.*?) (?P<kind>(?:ragged-)?all-\w+|reduce-scatter|collective-\w+)(?:-start)?\("
)
_ARRAY = re.compile(r"(?P<dtype>pred|bf16|[a-z]\d+)\[(?P<shape>[\d,]*)\]")


class Collective(NamedTuple):
    """One instruction that all devices carry out together.

    Attributes:
      kind: "all-reduce", "all-gather", "all-to-all", ...
      shapes: of what it exchanges, as (dtype, shape), sorted.
    """

    kind: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def num_elements(self) -> int:
        """Of all its arrays together."""
        return sum(math.prod(shape) for _, shape in self.shapes)


def collectives(program: str) -> list[Collective]:
    """Those of a compiled program's text, sorted; one inside a loop's body counts once."""
    found = []
    for match in _INSTRUCTION.finditer(program):
        arrays = _ARRAY.findall(match["type"])
        shapes = ((dtype, tuple(int(size) for size in shape.split(",") if size)) for dtype, shape in arrays)
        found.append(Collective(match["kind"], tuple(sorted(shapes))))
    return sorted(found)
