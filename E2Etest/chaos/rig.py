"""The tests' side of `faulty.py`: a server whose faults come with requests, and whose tasks can be counted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from E2Etest.chaos.faulty import GO, HANGS, TASKS, Fault
from E2Etest.process import ServerProcess

_PROGRAM = ("-P", str(Path(__file__).parent / "faulty.py"))
_WAIT_S = 60.0


class FaultyServer(ServerProcess):
    """It loads the model at once and keeps it, unless the settings say otherwise. Use `faulty()`."""

    def __init__(self, log: Path, **settings: str) -> None:
        super().__init__(log, program=_PROGRAM, **{"PRELOAD": "true", "IDLE_TIMEOUT": "0", **settings})
        self.preloads = settings.get("PRELOAD", "true") == "true"
        self._folder = log.parent

    @contextmanager
    def hanging(self, audio: bytes, fault: Fault = Fault.HANG_WHILE_DECODING) -> Iterator[Future[httpx.Response]]:
        """The engine hangs in a request for `audio`, whose answer is given; it goes on after the block."""
        self._goes_on(False)
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(self.transcribe, audio, prompt=fault)
            try:
                self.wait_until_hanging()
                yield work
            finally:
                self._goes_on(True)

    def wait_until_hanging(self) -> None:
        """For those who send the request themselves, after `hangs_next`."""
        until((self._folder / HANGS).exists)

    @contextmanager
    def hangs_next(self) -> Iterator[None]:
        """The next request with a hang hangs until the end of the block."""
        self._goes_on(False)
        try:
            yield
        finally:
            self._goes_on(True)

    def tasks(self) -> list[str]:
        """The names of the coroutines of all tasks."""
        told = self._folder / TASKS
        self.process.send_signal(signal.SIGUSR1)
        until(told.exists)
        names = told.read_text(encoding="utf-8").splitlines()
        told.unlink()
        return names

    def _goes_on(self, yes: bool) -> None:
        if yes:
            (self._folder / GO).touch()
        else:
            with suppress(FileNotFoundError):
                (self._folder / GO).unlink()


@contextmanager
def faulty(log: Path, **settings: str) -> Iterator[FaultyServer]:
    """Ready; stopped at the end."""
    server = FaultyServer(log, **settings)
    try:
        server.wait_until_live()
        if server.preloads:
            server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        yield server
    finally:
        server.stop()


def at_rest(health: dict) -> bool:
    """Whether nothing waits, runs, or is held."""
    queue = health["queue"]
    return not any(queue[name] for name in ("live", "interactive", "bulk", "running", "audio_held_s"))


def until(condition) -> None:
    """Wait for it."""
    give_up_s = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < give_up_s, "never"
        time.sleep(0.01)
