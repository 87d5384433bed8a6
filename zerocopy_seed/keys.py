"""Random keys, from (seed, stream, slot, incarnation): nothing depends on who shares a batch."""

from __future__ import annotations

import enum

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_seed.types import Array, Key


class Stream(enum.IntEnum):
    """Independent sources of randomness of one run."""

    LEARNER = 0
    ENVIRONMENT = 1
    AGENT = 2
    EVALUATION_ENVIRONMENT = 3
    EVALUATION_AGENT = 4


def stream_key(seed: Array | int, stream: Stream) -> Key:
    """The key of one stream. Threefry only: draws of other generators depend on the batch under vmap."""
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), stream)


def slot_keys(seed: Array | int, stream: Stream, slots: Array, incarnation: Array | int = 0) -> Key:
    """One key per slot, [B].

    Args:
      seed: the run's seed.
      stream: which source.
      slots: [B] int32.
      incarnation: [B] or one for all: how often the slot's actor was lost and began anew.
    """
    base = stream_key(seed, stream)
    fold = jax.random.fold_in
    return jax.vmap(lambda slot, number: fold(fold(base, slot), number))(
        slots, jnp.broadcast_to(jnp.asarray(incarnation), slots.shape)
    )


def as_seeds(words: Array) -> np.ndarray:
    """Keys' words [B, 2] uint32 as host environments' seeds, uint64 [B]; the first word is the upper half."""
    words = np.asarray(words).astype(np.uint64)
    return (words[:, 0] << np.uint64(32)) | words[:, 1]
