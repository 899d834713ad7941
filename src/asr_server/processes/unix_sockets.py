"""The socket of a worker process: a Unix socket without a name, which nobody can delete and only this process finds.

Cleaners of temporary files delete the name of a socket that is in use, and then no new connection reaches it. So the
name exists only while the socket is bound. After that a descriptor refers to the socket (`O_PATH` in open(2)), and this
process connects to the path of the descriptor (`/proc/self/fd` in proc(5)). No path is too long for unix(7).
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "asr-server-"
_NAME = "worker.sock"
# In memory on every Linux, and never cleaned. If it cannot be used, the directory for temporary files is.
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True)
class UnnamedSocket:
    """A socket that only this process can connect to."""

    # Bound, but not listening: the worker that inherits it calls `listen`. Until then connections are refused.
    listener: socket.socket
    path: Path  # where this process connects; no other process can


@contextmanager
def unnamed_socket() -> Iterator[UnnamedSocket]:
    """Yield a new socket; its two descriptors are closed at the end. Raises OSError if neither directory can be written
    to."""
    try:
        bound, inode_fd = _bind(_SHARED_MEMORY)
    except OSError:
        bound, inode_fd = _bind(tempfile.gettempdir())
    try:
        with bound:
            yield UnnamedSocket(bound, _path_of(inode_fd))
    finally:
        os.close(inode_fd)


def _bind(parent: str) -> tuple[socket.socket, int]:
    """Return a socket bound in a directory below `parent`, which has been removed again, and a descriptor of the
    socket's inode."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        # Only this user can enter the directory.
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as directory:
            directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
            try:
                listener.bind(str(_path_of(directory_fd) / _NAME))
                return listener, os.open(_NAME, os.O_PATH, dir_fd=directory_fd)
            finally:
                os.close(directory_fd)
    except BaseException:
        listener.close()
        raise


def _path_of(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}")
