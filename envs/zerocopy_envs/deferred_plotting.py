"""Imports gymnax without the plotting packages that only its `render` methods need."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

# gymnax 1.0.1 imports these with its environments: 5 of the 6 seconds of `import gymnax` on two cores.
_PLOTTING = ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "seaborn")


class _Deferred(types.ModuleType):
    """Stands for a module and imports the real one when something in it is first wanted."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if f"{self.__name__}.{attribute}" in _PLOTTING:
            return _Deferred(f"{self.__name__}.{attribute}")
        return getattr(importlib.import_module(self.__name__), attribute)


@contextlib.contextmanager
def deferred_plotting() -> Iterator[None]:
    """Within it, importing a plotting package gives a stand-in; packages already imported are left alone."""
    stand_ins = {name: _Deferred(name) for name in _PLOTTING if name not in sys.modules}
    if "matplotlib" not in stand_ins:
        stand_ins = {name: module for name, module in stand_ins.items() if name == "seaborn"}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
