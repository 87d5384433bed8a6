"""Small files that are replaced as a whole, and files that whole pieces are appended to. Imports no JAX."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Writes a file, so that a kill or a full disk leaves either the old text or the new one.

    Raises:
      OSError: the new text could not be written.
    """
    replacement = path.with_name(f"{path.name}.tmp")
    try:
        replacement.write_text(text, encoding="utf-8")
        os.replace(replacement, path)
    except OSError:
        replacement.unlink(missing_ok=True)
        raise


def append_whole(path: Path, piece: bytes) -> None:
    """Appends to a file, so that a full disk leaves it as it was.

    The file is opened anew: what a full disk cut off or kept in a buffer must not spoil the next piece.

    Raises:
      OSError: the piece could not be written.
    """
    with open(path, "ab", buffering=0) as file:
        begin = file.tell()
        if file.write(piece) != len(piece):
            file.truncate(begin)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
