"""The process's environment, for what is no setting of a server.

It is apart from the settings because they need pydantic, which takes longer to import than most commands and child
processes take for everything else.
"""

from __future__ import annotations

import os


def client_variable(name: str) -> str:
    """Return a variable of client commands, "" for none, from the environment of the process alone: a `.env` file in
    the working directory, or an invalid setting in it, concerns a server and must not affect a client."""
    return os.environ.get(name, "").strip()


def prefer(name: str, value: str) -> None:
    """Set an environment variable for libraries that are loaded later, unless the operator has set it."""
    os.environ.setdefault(name, value)


def process_environment(**changes: str) -> dict[str, str]:
    """Return the environment for a child process: this one's with `changes`."""
    return {**os.environ, **changes}
