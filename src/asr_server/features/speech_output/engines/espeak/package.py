"""The library and the voices of eSpeak NG: in an installed Python package, or in the system's.

The library is loaded only in child processes: it is under the GPL, so it stays a separate program, and it is C code
that reads the callers' text.
"""

from __future__ import annotations

import ctypes.util
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ESPEAK = "espeak"
PACKAGE = "espeakng-loader"
_SYSTEM_DATA = tuple(
    Path(root, "espeak-ng-data")
    for root in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/share", "/usr/lib")
)


@dataclass(frozen=True, slots=True)
class Library:
    """The files of eSpeak NG."""

    path: str  # of the shared library
    data: Path  # the directory with languages and voices


@cache
def find() -> Library | None:
    """Return the library of the Python package, else that of the system; None if there is neither."""
    spec = find_spec("espeakng_loader")
    if spec is not None and spec.origin is not None:
        directory = Path(spec.origin).parent
        library = Library(str(directory / "libespeak-ng.so"), directory / "espeak-ng-data")
        if Path(library.path).is_file() and library.data.is_dir():
            return library
    name = ctypes.util.find_library("espeak-ng")
    data = next((path for path in _SYSTEM_DATA if path.is_dir()), None)
    return Library(name, data) if name is not None and data is not None else None


def missing() -> str:
    """Return why this machine cannot speak with eSpeak NG; "" if it can."""
    if find() is not None:
        return ""
    return f"eSpeak NG is not there: pip install {PACKAGE}, or install the system's package espeak-ng"
