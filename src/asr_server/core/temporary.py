"""The directory for temporary files, which may vanish while the server runs."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from loguru import logger


def restore_directory() -> None:
    """Make the directory for temporary files again, for this user alone, if it has vanished.

    It is the one that `tempfile` chose at its first use (`TMPDIR`, `/tmp`), and never another: a smaller disk would
    fill. Does nothing where it cannot be made: whoever creates a file gets the error.
    """
    with suppress(OSError):
        directory = Path(tempfile.gettempdir())
        if not directory.exists():
            directory.mkdir(mode=0o700)
            logger.warning("directory for temporary files has vanished and is made again", directory=str(directory))
