"""Callers of every kind, who go on until they are told to stop, and note each answer that is not what it should be."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from E2Etest.chaos import soak_traffic
from E2Etest.chaos.soak_traffic import Recording
from E2Etest.drive import recordings
from E2Etest.drive.process import Server, until
from E2Etest.drive.session import act, data, open_session, pieces

TIMEOUT_S = 60.0
# Of a job, from when it was accepted: a server that died has it for a while.
JOB_TIMEOUT_S = 180.0
# After a failure, so that a server that is gone is not asked thousands of times.
_PAUSE_S = 0.1
_SPANS = 6
_TEXT = "The first sentence. The second sentence. The third sentence, which is the last."


class WrongAnswer(Exception):
    """An answer that looks complete and is not what it should be."""


@dataclass
class Tally:
    """The outcomes of the requests of each kind. `broken`: failures that a client sees as such, with their text."""

    answered: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[str, str]] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)


class Callers:
    """One thread for each kind of request, until the block ends. The recordings have the words `text` in each of their
    spans.

    `with_jobs`: jobs too, which any server behind the address must answer for. `jobs`: the ids of those that were
    accepted.
    """

    def __init__(self, server: Server, text: str, *, with_jobs: bool = False) -> None:
        self._server, self._words = server, " ".join([text] * _SPANS)
        speech = recordings.samples()
        spans = np.tile(np.concatenate([speech, np.zeros(3 * 16_000, np.int16)]), _SPANS)
        clip, self._long = (Recording("", recordings.wav(samples), samples) for samples in (speech, spans))
        self._ask, self._client = soak_traffic.Callers(server, TIMEOUT_S), server.client
        self._stopping = threading.Event()
        self.tally = Tally()
        self.jobs: list[str] = []
        self.kinds: dict[str, Callable[[], None]] = {
            "file": lambda: _check(self._ask.file(clip), text),
            "long file": lambda: _check(self._ask.file(self._long), self._words),
            "stream": lambda: _check(self._ask.events(self._long), self._words),
            "speech": self._speech,
            "live session": self._live,
        }
        if with_jobs:
            self.kinds["job"] = self._job
        self._threads = [threading.Thread(target=self._go_on, args=(kind,)) for kind in self.kinds]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let each request under way come to its end."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._ask.close()

    def wait_for_each_kind(self, more: int) -> None:
        """Wait until each kind was answered that many times more."""
        before = self.tally.answered.copy()
        wanted = {kind: before[kind] + more for kind in self.kinds}
        until(lambda: self.tally.answered >= Counter(wanted), 2 * TIMEOUT_S, lambda: self.tally)

    def _go_on(self, kind: str) -> None:
        while not self._stopping.is_set():
            try:
                self.kinds[kind]()
                self.tally.answered[kind] += 1
            except WrongAnswer as error:
                self.tally.wrong.append((kind, str(error)))
            except (soak_traffic.Unexpected, httpx.HTTPError, ConnectionClosed, InvalidHandshake, OSError) as error:
                self.tally.broken.append((kind, _described(error)))
                self._stopping.wait(_PAUSE_S)

    def _speech(self) -> None:
        body = {"model": "tts-1", "voice": "alloy", "input": _TEXT, "response_format": "wav"}
        answer = self._client.post("/v1/audio/speech", json=body)
        answer.raise_for_status()
        _check(len(answer.content) > 100_000, True)

    def _live(self) -> None:
        """A session of two utterances at about the speed of speech. One whose server goes gets its final and 1001."""
        speech = data(np.concatenate([recordings.samples(), np.zeros(16_000, np.int16)]))
        with open_session(self._server) as socket:
            try:
                for piece in pieces(speech, 6_400):
                    socket.send(piece)
                    time.sleep(0.2)
                act(socket, "flush")
                messages = self._ask.upto_flush(socket)
            except ConnectionClosed as closed:
                if closed.rcvd is None or closed.rcvd.code != 1001:
                    raise
                return
        _check(any(message.get("is_final") and message["text"] for message in messages), True)

    def _job(self) -> None:
        """Once it is accepted it must come to its end, however often nobody can answer for it."""
        made = self._client.post("/v1/jobs", files={"file": ("a.wav", self._long.file)}, data={"model": "whisper-1"})
        made.raise_for_status()
        accepted = made.json()["id"]
        self.jobs.append(accepted)
        job = _asked(self._client, f"/v1/jobs/{accepted}", lambda body: body["ended_at"] is not None)
        _check(job["status"], "succeeded")
        result = _asked(self._client, f"/v1/jobs/{accepted}/result", lambda body: True)
        _check(result["text"], self._words)


def _asked(client: httpx.Client, path: str, condition: Callable[[dict], bool]) -> dict:
    """The first body of which `condition` holds. Where no answer comes, or a 5xx, it is asked for again."""
    give_up_s, last = time.monotonic() + JOB_TIMEOUT_S, ""
    while time.monotonic() < give_up_s:
        try:
            answer = client.get(path)
        except httpx.TransportError as error:
            last = _described(error)
        else:
            last = f"{answer.status_code} {answer.text[:200]}"
            if answer.is_client_error:
                break
            if answer.is_success and condition(body := answer.json()):
                return body
        time.sleep(_PAUSE_S)
    raise WrongAnswer(f"{path}: {last}")


def _check(seen: object, expected: object) -> None:
    if seen != expected:
        raise WrongAnswer(f"{seen!r} instead of {expected!r}")


def _described(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"{error.response.status_code} {error.response.text[:200]}"
    return f"{type(error).__name__}: {error}"
