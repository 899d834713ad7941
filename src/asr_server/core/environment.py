"""The process's environment, for what is no setting of a server, and its directory for temporary files.

It is apart from the settings because they need pydantic, which takes longer to import than most commands and child
processes take for everything else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def client_variable(name: str) -> str:
    """Return a variable of client commands, "" for none, only from the environment of the process: a `.env` file in
    the working directory, or an invalid setting in it, concerns a server and must not affect a client."""
    return os.environ.get(name, "").strip()


def fake_engine_script() -> Path | None:
    """Return the file with the script of `MODEL_ID=fake` and `SPEECH=fake`, which only tests have: engines with
    scripted answers and faults."""
    name = os.environ.get("FAKE_ENGINE_SCRIPT")
    return Path(name) if name else None


def prefer(name: str, value: str) -> None:
    """Set an environment variable for libraries that are loaded later, unless the operator has set it."""
    os.environ.setdefault(name, value)


def process_environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}


def restore_directory() -> None:
    """Make the directory for temporary files again, only for this user, if it has vanished while the server runs.

    It is the one that `tempfile` chose at its first use (`TMPDIR`, `/tmp`), and never another: a smaller disk would
    fill. Does nothing if it cannot be made: the code that creates a file gets the error.
    """
    import tempfile  # here, as client commands import this module

    from loguru import logger

    with suppress(OSError):
        directory = Path(tempfile.gettempdir())
        if not directory.exists():
            directory.mkdir(mode=0o700)
            logger.warning("directory for temporary files has vanished and is made again", directory=str(directory))
