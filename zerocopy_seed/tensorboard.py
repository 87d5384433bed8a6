"""Files of TensorBoard events, written piece by piece: whole lines or nothing. Imports no JAX.

tensorboardX's own writer has a thread behind a queue of ten: a full disk ends the thread, and whoever adds
the eleventh event then waits for ever.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerocopy_seed.files import append_whole


class EventsFile:
    """A new file of events in `directory`.

    Args:
      directory: TensorBoard reads all the files there as one run.
      purge_step: from here on, events of files before this one are hidden; None hides nothing.
    """

    def __init__(self, directory: Path, purge_step: int | None):
        from tensorboardX.proto import event_pb2, summary_pb2  # imported late: half a second

        self._event: Any = event_pb2.Event  # type: ignore[attr-defined]  # generated
        self._summary: Any = summary_pb2.Summary  # type: ignore[attr-defined]
        # The second part is when it began, for people; files of the same second must differ, hence the last.
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{time.time_ns()}"
        self._path = directory / name
        self._head = self._record(file_version="brain.Event:2")
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)  # type: ignore[attr-defined]
            self._head += self._record(step=purge_step, file_version="brain.Event:2")
            self._head += self._record(step=purge_step, session_log=start)

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Appends scalars by tag, all of them or none.

        Raises:
          OSError: they could not be written.
        """
        values = [self._summary.Value(tag=tag, simple_value=float(value)) for tag, value in scalars.items()]
        events = [self._record(step=step, summary=self._summary(value=[value])) for value in values]
        append_whole(self._path, self._head + b"".join(events))
        self._head = b""

    def _record(self, **fields: Any) -> bytes:
        data = self._event(wall_time=time.time(), **fields).SerializeToString()
        size = struct.pack("<Q", len(data))
        return size + _checksum(size) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """TFRecord's masked CRC-32C."""
    from tensorboardX.crc32c import crc32c

    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
