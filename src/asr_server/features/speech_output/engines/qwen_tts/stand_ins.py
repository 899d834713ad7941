"""Modules that stand for others while a library is imported, which loads them and never calls them here."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast


class Unused(ModuleType):
    """Stands for a module whose names are imported while nothing is called but what is in `used`."""

    def __init__(self, name: str, **used: Any) -> None:
        super().__init__(name)
        self.__path__ = []  # so that it may have submodules
        self.__dict__.update(used)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def replaced(stand_ins: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Meanwhile these names import as that; None is as if it were not installed."""
    stand_ins = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    modules = cast(dict[str, ModuleType | None], sys.modules)
    modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del modules[name]
