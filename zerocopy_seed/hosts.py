"""What the processes of one run tell each other, on one host or several: `jax.process_count()` of them.

Every function here but `count`, `index` and `is_first` is called by all of them, in the same order, from
their main thread. A single process is told what it says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from zerocopy_envs.errors import UserError

T = TypeVar("T")


def count() -> int:
    """How many there are."""
    # a single process is not asked: that would start JAX's devices, before settings that come first
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
    """Which one this is, from 0."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_first() -> bool:
    """Whether it is the one that writes what only one can write."""
    return index() == 0


def gather(numbers: Sequence[int | bool]) -> np.ndarray:
    """Everybody's numbers, below 2^31: int32 [hosts, n]."""
    mine = np.array(numbers, np.int32)
    return mine[None] if count() == 1 else np.asarray(multihost_utils.process_allgather(mine))


def any_of(flag: bool) -> bool:
    """Whether it is true on any."""
    return bool(gather([flag]).any())


def of_first(*numbers: int | bool) -> list[int]:
    """The first one's numbers."""
    return gather(numbers)[0].tolist()


def gather_text(text: str) -> list[str]:
    """Everybody's text."""
    if count() == 1:
        return [text]
    mine = np.frombuffer(text.encode(), np.uint8)
    sizes = gather([len(mine)])[:, 0].tolist()
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(mine)] = mine
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


def all_as_json(value: Any) -> list[Any]:
    """Everybody's value, which JSON can say."""
    return [value] if count() == 1 else [json.loads(text) for text in gather_text(json.dumps(value))]


def of_first_as_json(value: Any) -> Any:
    """The first one's value, which JSON can say; what the others have is not looked at."""
    return all_as_json(value if is_first() else None)[0]


def first_does(action: Callable[[], None]) -> None:
    """The first one calls `action`.

    Raises:
      OSError: it failed there; on the first one whatever was raised.
    """
    error = None
    try:
        if is_first():
            action()
    except Exception as raised:
        error = raised
    if any_of(error is not None):
        raise error or OSError("host 0 could not, which says why")


def require_all(check: Callable[[], T]) -> T:
    """What `check` returns here, if it raises nowhere.

    Raises:
      UserError: it did, here or elsewhere.
    """
    error, result = None, None
    try:
        result = check()
    except UserError as raised:
        error = raised
    others = [place for place, has_failed in enumerate(gather([error is not None])[:, 0]) if has_failed]
    if error is not None:
        raise error
    if others:
        raise UserError(
            f"host {index()} of {count()}",
            expected="all hosts to begin",
            found=f"that host {others[0]} cannot, which says why",
        )
    return result  # type: ignore[return-value]
