"""The traffic of the soak: what callers ask for in every way that there is, and what each hears on a quiet server."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import numpy as np

from E2Etest import recordings
from E2Etest.live.session import act, data, finals, open_session, pieces, upto_flush
from E2Etest.process import ServerProcess
from E2Etest.realtime.session import COMPLETED, pcm24
from E2Etest.realtime.session import open_session as realtime

# No answer may take longer, whatever happens to others meanwhile.
HANG_S = 60.0
PAUSE = np.zeros(40_000, np.int16)


@dataclass(frozen=True)
class Recording:
    """A file, and the same as int16 at 16 kHz."""

    name: str
    file: bytes
    pcm: np.ndarray


class Unexpected(AssertionError):
    """An answer that nobody should get."""


def all_recordings() -> list[Recording]:
    """One phrase in every kind of file, several with pauses between, and nobody speaking."""
    phrase = recordings.samples()
    one, three = np.concatenate([phrase, PAUSE]), np.concatenate([phrase, PAUSE] * 3)
    made = [Recording("wav", recordings.wav(phrase), one), Recording("three", recordings.wav(three), three)]
    made.append(Recording("twelve", recordings.wav(np.concatenate([three] * 4)), three))
    made.append(Recording("silence", recordings.wav(PAUSE), PAUSE))
    for container, codec in (("flac", "flac"), ("mp3", "mp3"), ("ogg", "libopus"), ("mp4", "aac"), ("webm", "libopus")):
        made.append(Recording(container, recordings.encoded(container, codec), one))
    return made


class Callers:
    """Each method asks in one way and returns what was understood. Used from many threads."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._http = httpx.Client(base_url=server.base, timeout=HANG_S, limits=httpx.Limits(max_connections=None))

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    @contextmanager
    def _asking(self, path: str, recording: Recording, **fields: str) -> Iterator[httpx.Response]:
        form = {"files": {"file": ("a", recording.file)}, "data": {"model": "demo", **fields}}
        with self._http.stream("POST", path, **form) as answer:
            if answer.status_code >= 300:
                raise Unexpected(f"{path}: {answer.status_code} {answer.read()[:300]!r}")
            yield answer

    def file(self, recording: Recording) -> object:
        """The words of a file."""
        with self._asking("/v1/audio/transcriptions", recording) as answer:
            return json.loads(answer.read())["text"]

    def events(self, recording: Recording) -> object:
        """The same as a stream: the last event before the end has the whole."""
        with self._asking("/v1/audio/transcriptions/stream", recording) as answer:
            told = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
        if told[-1] != {"done": True}:
            raise Unexpected(f"events: {told[-1]}")
        return told[-2]["text"]

    def subtitles(self, recording: Recording) -> object:
        """The words of a subtitle file: times may be estimates when the aligner is busy."""
        with self._asking("/v1/audio/subtitles", recording, response_format="srt") as answer:
            return re.sub(r"(?m)^\d+$|^.*-->.*$", "", answer.read().decode()).split()

    def job(self, recording: Recording) -> object:
        """A job is made, watched to its end, fetched and removed."""
        with self._asking("/v1/jobs", recording, response_format="text") as answer:
            path = f"/v1/jobs/{json.loads(answer.read())['id']}"
        with self._http.stream("GET", f"{path}/events") as answer:
            states = [json.loads(line[6:])["status"] for line in answer.iter_lines() if line.startswith("data: ")]
        result, removed = self._http.get(f"{path}/result"), self._http.delete(path)
        if (states[-1], result.status_code, removed.status_code) != ("succeeded", 200, 200):
            raise Unexpected(f"job: {states[-1]}, {result.status_code}, {removed.status_code}")
        return result.text

    def live(self, recording: Recording) -> object:
        """The finals of a live session, sent in tenths of a second."""
        with open_session(self._server) as socket:
            for piece in pieces(data(recording.pcm), 3_200):
                socket.send(piece)
            act(socket, "flush")
            return finals(upto_flush(socket))

    def realtime(self, recording: Recording) -> object:
        """The transcript of one turn, committed by the client."""
        with realtime(self._server) as talk:
            talk.update(turn_detection=None)
            talk.say(pcm24(recording.pcm))
            talk.commit()
            return talk.until(COMPLETED)[-1].transcript

    def look(self, recording: Recording) -> object:
        """What is watched and looked at: health, metrics, models, the page."""
        found = [self._http.get(path).status_code for path in ("/health", "/metrics", "/v1/models", "/", "/livez")]
        if set(found) != {200}:
            raise Unexpected(f"look: {found}")
        return None


# How many of twenty ask so.
SHARES = {"file": 8, "events": 3, "subtitles": 2, "job": 1, "live": 3, "realtime": 2, "look": 1}


class Traffic:
    """Turns at random, each with what it must come to."""

    def __init__(self, server: ServerProcess) -> None:
        self._callers = callers = Callers(server)
        self._asks: dict[str, Callable[[Recording], object]] = {name: getattr(callers, name) for name in SHARES}
        self._recordings = all_recordings()
        self._quiet = {
            (name, recording.name): ask(recording) for name, ask in self._asks.items() for recording in self._recordings
        }

    def close(self) -> None:
        """Hang up."""
        self._callers.close()

    def turn(self, chance: random.Random) -> tuple[str, Callable[[], None]]:
        """The name of one, and how to play it; it raises `Unexpected` for what was not heard in the quiet."""
        (name,) = chance.choices(list(SHARES), list(SHARES.values()))
        recording = chance.choice(self._recordings)

        def play() -> None:
            heard = self._asks[name](recording)
            if heard != self._quiet[name, recording.name]:
                raise Unexpected(f"{name} of {recording.name}: {heard!r}")

        return name, play
