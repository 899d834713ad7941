"""A real PostgreSQL server for tests, from Debian's package, on a Unix socket in a directory of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from E2Etest.drive.procfs import family, until

# Without fsync the data survives the end of the processes, which is the only fault of the tests.
_SETTINGS = {"listen_addresses": "", "fsync": "off", "max_connections": "60"}


class Postgres:
    """One server. `url`: the address of its database."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._programs = programs()
        # PostgreSQL refuses to run as root.
        self._user = {"user": "nobody", "group": "nogroup", "extra_groups": ()} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(directory, "nobody", "nogroup")
        self._run("initdb", "--pgdata", str(directory / "data"), "--username", "asr", "--auth", "trust", "--no-sync")
        self.url = f"postgresql://asr@/postgres?host={directory}"
        self.start()

    def start(self) -> None:
        """Start the server, and return when it answers."""
        options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.directory / "data", "-k", self.directory, *options],
                stdout=log,
                stderr=log,
                **self._user,
            )
        asking = [self._programs / "pg_isready", "-q", "-h", self.directory]
        until(lambda: not subprocess.run(asking, check=False).returncode, state=(self.directory / "log").read_text)

    def stop(self) -> None:
        """End the server at once, as a crash of its machine does."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(timeout=30)

    def kill(self) -> None:
        """Send SIGKILL to all processes of the server."""
        for pid in family(self.process.pid):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=30)

    def query(self, statement: str) -> list[str]:
        """Run a statement and return the rows of the answer."""
        command = [self._programs / "psql", "-X", "-A", "-t", "-d", self.url, "-c", statement]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            **self._user,
        )
        assert done.returncode == 0, done.stderr


def programs() -> Path:
    """Return the directory of the programs of the newest PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    assert found, "these tests need PostgreSQL: apt-get install postgresql"
    return found[-1].parent


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start a new server, which is stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:  # a path short enough for a socket
        server = Postgres(Path(directory))
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()
