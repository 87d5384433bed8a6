"""Trajectories on disk: a directory of shards with an index, written by runs and read by others. No JAX."""

from zerocopy_seed.experience.index import Description, Index, check_fits, open_index
from zerocopy_seed.experience.reader import Place, RecordReader, Round
from zerocopy_seed.experience.writer import RecordWriter

__all__ = [
    "Description",
    "Index",
    "Place",
    "RecordReader",
    "RecordWriter",
    "Round",
    "check_fits",
    "open_index",
]
