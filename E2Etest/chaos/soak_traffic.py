"""The traffic of the soak: what callers ask for in every way that there is, and what each hears on a quiet server."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import numpy as np
from websockets.sync.client import ClientConnection

from asr_server.net.errors import TABLE
from E2Etest.drive import recordings
from E2Etest.drive.process import Server
from E2Etest.drive.session import act, data, finals, open_session, pieces, receive
from E2Etest.realtime.session import COMPLETED, pcm24
from E2Etest.realtime.session import open_session as realtime

# No answer may take longer, whatever happens to others meanwhile.
HANG_S = 60.0
AT_ONCE = 12  # callers at most
PAUSE = np.zeros(40_000, np.int16)


@dataclass(frozen=True)
class Recording:
    """A file, and the same as int16 at 16 kHz."""

    name: str
    file: bytes
    pcm: np.ndarray


class Unexpected(AssertionError):
    """An answer that nobody should get."""


class TryAgain(Unexpected):
    """A refusal that invites a retry: 503 with `Retry-After`, or what stands for it where an answer has begun."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


# The codes of such refusals.
RETRYABLE = {code for code, mapping in TABLE.items() if mapping.status == 503 and mapping.retry_after_s}


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

    looked_at = ("/health", "/metrics", "/v1/models", "/", "/livez")

    def __init__(self, server: Server, hang_s: float = HANG_S) -> None:
        self._server, self._hang_s = server, hang_s
        more = {"headers": server.client.headers, "limits": httpx.Limits(max_connections=None)}
        self._http = httpx.Client(base_url=server.base, timeout=hang_s, **more)

    def close(self) -> None:
        self._http.close()

    @contextmanager
    def _asking(self, path: str, recording: Recording, **fields: str) -> Iterator[httpx.Response]:
        form = {"files": {"file": ("a", recording.file)}, "data": {"model": self._server.model, **fields}}
        with self._http.stream("POST", path, **form) as answer:
            _check(answer)
            yield answer

    def _events(self, answer: httpx.Response) -> list[dict]:
        """The events of a stream. Raises `TryAgain` where one of them invites to."""
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
        error = events[-1].get("error")
        if error is not None and error["code"] in RETRYABLE and "status" not in events[-1]:  # the last: a job's own
            raise TryAgain(error["code"])
        return events

    def _request(self, method: str, path: str) -> httpx.Response:
        answer = self._http.request(method, path)
        _check(answer)
        return answer

    def again(self, ask: Callable):
        """Ask for a part of a turn. Some callers ask again where they are invited to."""
        return ask()

    def file(self, recording: Recording) -> object:
        with self._asking("/v1/audio/transcriptions", recording) as answer:
            return json.loads(answer.read())["text"]

    def events(self, recording: Recording) -> object:
        """Transcribe as a stream: the last event before the end has the whole text."""
        with self._asking("/v1/audio/transcriptions/stream", recording) as answer:
            told = self._events(answer)
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
        ended = self.again(lambda: self._last_state(path))
        if ended["status"] != "succeeded":
            error = ended["error"]["code"]
            raise TryAgain(error) if error in RETRYABLE else Unexpected(f"job: {error}")
        result = self.again(lambda: self._request("GET", f"{path}/result"))
        self.again(lambda: self._request("DELETE", path))
        return result.text

    def _last_state(self, path: str) -> dict:
        with self._http.stream("GET", f"{path}/events") as answer:
            _check(answer)
            return self._events(answer)[-1]

    def live(self, recording: Recording) -> object:
        """The finals of a live session, sent in tenths of a second."""
        with open_session(self._server) as socket:
            for piece in pieces(data(recording.pcm), 3_200):
                socket.send(piece)
            act(socket, "flush")
            return finals(self.upto_flush(socket))

    def upto_flush(self, socket: ClientConnection) -> list[dict]:
        """Receive as `upto_flush` does, but an error may be an invitation."""
        messages = [receive(socket)]
        while messages[-1].get("ending") != "flush":
            if "error" in messages[-1]:
                code = messages[-1]["code"]
                raise TryAgain(code) if code in RETRYABLE else Unexpected(f"live: {messages[-1]}")
            messages.append(receive(socket))
        return messages

    def realtime(self, recording: Recording) -> object:
        with realtime(self._server, websocket_connection_options={"open_timeout": self._hang_s}) as talk:
            talk.update(turn_detection=None)
            talk.say(pcm24(recording.pcm))
            talk.commit()
            return talk.until(COMPLETED)[-1].transcript

    def look(self, recording: Recording) -> object:
        for path in self.looked_at:
            self._request("GET", path)


def _check(answer: httpx.Response) -> None:
    if answer.status_code >= 300:
        body = answer.read()
        if answer.status_code == 503 and 1 <= int(answer.headers.get("retry-after", 0)) <= 60:
            raise TryAgain(json.loads(body)["error"]["code"])
        raise Unexpected(f"{answer.request.url.path}: {answer.status_code} {body[:300]!r}")


# How many of twenty ask so.
SHARES = {"file": 8, "events": 3, "subtitles": 2, "job": 1, "live": 3, "realtime": 2, "look": 1}


class Traffic:
    """Turns at random, each with what it must come to."""

    def __init__(self, callers: Callers) -> None:
        self.callers = callers
        self._asks: dict[str, Callable[[Recording], object]] = {name: getattr(callers, name) for name in SHARES}
        self._recordings = all_recordings()
        self._quiet = {
            (name, recording.name): ask(recording) for name, ask in self._asks.items() for recording in self._recordings
        }

    def turn(self, chance: random.Random) -> tuple[str, Callable[[], None]]:
        """The name of one, and how to play it; it raises `Unexpected` for what was not heard in the quiet."""
        (name,) = chance.choices(list(SHARES), list(SHARES.values()))
        recording = chance.choice(self._recordings)

        def play() -> None:
            heard = self.callers.again(lambda: self._asks[name](recording))
            if heard != self._quiet[name, recording.name]:
                raise Unexpected(f"{name} of {recording.name}: {heard!r}")

        return name, play


class Ledger:
    """The outcomes of all requests. Filled from many threads."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.errors: list[str] = []
        self.slowest_s = 0.0
        self._lock = threading.Lock()

    def enter(self, name: str, play: Callable[[], None]) -> None:
        """Play, and note how it ended."""
        began_s, error = time.monotonic(), None
        try:
            play()
        except Exception as found:  # the edge: whatever happened to a caller is what is asked here
            error = f"{name}: {type(found).__name__}: {found}"[:500]
        with self._lock:
            self.done[name] += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            self.errors += [error] if error else []


def capacity(traffic: Traffic, ledger: Ledger, calibration_s: float) -> float:
    """Turns a second of callers who ask again as soon as they are answered."""
    over_s = time.monotonic() + calibration_s

    def call(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < over_s:
            ledger.enter(*traffic.turn(chance))

    began_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(call, range(AT_ONCE)))
    return ledger.done.total() / (time.monotonic() - began_s)


def arrive(traffic: Traffic, ledger: Ledger, rate: float, over_s: float, chance: random.Random) -> None:
    """Callers come at random at this rate; where all lines are taken, they wait for one."""
    room = threading.Semaphore(AT_ONCE)

    def one(name: str, play: Callable[[], None]) -> None:
        try:
            ledger.enter(name, play)
        finally:
            room.release()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        at_s = time.monotonic()
        while max(at_s := at_s + chance.expovariate(rate), time.monotonic()) < over_s:
            time.sleep(max(0.0, at_s - time.monotonic()))
            room.acquire()
            pool.submit(one, *traffic.turn(chance))
