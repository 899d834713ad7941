"""A server with the fake engine in which a request may hang: its `prompt` asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess, fake_model, until

HANG = "hang while decoding"  # the prompt of a request in which the engine hangs


class FaultyServer(ServerProcess):
    """A server that answers with the words of the bundled recording, and keeps the model loaded. Use `faulty()`."""

    def __init__(self, log: Path, **settings: str) -> None:
        self._hangs = log.parent / "hangs"
        words = recordings.sample()[1]
        fault = {"fault": "hang", "at": "step", "after_tokens": 3, "hang_file": str(self._hangs)}
        rules = [{"context": HANG, "text": words, **fault}, {"text": words}]
        engine = fake_model(log.parent, script={"load_s": 0.0, "step_s": 0.005, "rules": rules})
        super().__init__(log, **{**engine, "PRELOAD": "true", "IDLE_TIMEOUT": "0", **settings})

    @contextmanager
    def hanging(self, audio: bytes) -> Iterator[Future[httpx.Response]]:
        """The engine hangs in a request for `audio`, whose answer is given; it goes on after the block."""
        with ThreadPoolExecutor(1) as pool, self.hangs_next():
            work = pool.submit(self.transcribe, audio, prompt=HANG)
            self.wait_until_hanging()
            yield work

    def wait_until_hanging(self) -> None:
        """Wait until the engine hangs, for tests that send the request themselves, inside of `hangs_next`."""
        until(self._hangs.exists)

    @contextmanager
    def hangs_next(self) -> Iterator[None]:
        """A request with a hang hangs until the end of the block."""
        try:
            yield
        finally:
            self._hangs.unlink(missing_ok=True)


@contextmanager
def faulty(log: Path, **settings: str) -> Iterator[FaultyServer]:
    """Ready; stopped at the end."""
    server = FaultyServer(log, **settings)
    try:
        server.wait_until_live()
        server.wait_for(lambda health: health["model_loaded"])
        yield server
    finally:
        server.stop()


def at_rest(health: dict) -> bool:
    """Return True if nothing waits, runs, or is held."""
    queue = health["queue"]
    return not any(queue[name] for name in ("final", "partial", "interactive", "bulk", "running", "audio_held_s"))
