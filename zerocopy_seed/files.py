"""Small files that are replaced as a whole. Imports no JAX."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Writes a file, so that a kill leaves either the old text or the new one."""
    replacement = path.with_name(f"{path.name}.tmp")
    replacement.write_text(text, encoding="utf-8")
    os.replace(replacement, path)
