"""Where a worker process listens: a Unix socket that only this user can reach."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The shortest of the systems' limits for the path of a socket, without the byte that ends it: 103 on macOS (unix(4)),
# 107 on Linux (unix(7)).
_MAX_PATH_BYTES = 103
_PREFIX = "asr-server-"
_NAME = "worker.sock"
# What `tempfile` adds to the prefix.
_RANDOM = "x" * 8


@contextmanager
def private_socket() -> Iterator[Path]:
    """The path of a socket that does not exist yet, in a new folder that only this user can enter; removed at the end.

    The folder is in that of temporary files or, where the path would be too long for a socket, in `/tmp`.
    """
    path = Path(tempfile.gettempdir()) / (_PREFIX + _RANDOM) / _NAME
    parent = None if len(os.fsencode(path)) <= _MAX_PATH_BYTES else "/tmp"
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder) / _NAME
