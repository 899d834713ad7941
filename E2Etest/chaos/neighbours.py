"""One key attacks a server while another one uses it: the attacks' connections, and what the other one still gets."""

from __future__ import annotations

import json
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import httpx

from E2Etest.chaos.floods import authorization
from E2Etest.drive import recordings
from E2Etest.drive.process import Server, ServerProcess
from E2Etest.drive.procfs import family
from E2Etest.drive.wire import TEXT, frame, handshake

ATTACKER, NEIGHBOUR = "sk-attacker-0123456789-0123456789", "sk-neighbour-0123456789-0123456789"
KEYS = f"{ATTACKER},{NEIGHBOUR}"
MEMORY_MIB = 64
_GIVE_UP_S = 120.0
_SPAWN = multiprocessing.get_context("spawn")
# Of processes that begin with the first work of their kind, such as another decoder.
_OTHER_DESCRIPTORS = 16


def request(method: str, path: str, body: bytes = b"", media_type: str = "application/json") -> bytes:
    """A request of the attacker's, as bytes."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n" + authorization(ATTACKER) + b"\r\n" + body


def spoken(text: str, path: str = "/v1/audio/speech", **fields: object) -> bytes:
    return request("POST", path, json.dumps({"input": text, "response_format": "pcm", **fields}).encode())


def message(**fields: object) -> bytes:
    return frame(json.dumps(fields).encode(), TEXT)


@contextmanager
def opened(server: ServerProcess, sent: bytes, *, ends: bool = False) -> Iterator[socket.socket]:
    """A connection that takes little of what it gets, and that reads nothing by itself. `ends`: its sending side."""
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        line.settimeout(10)
        line.connect(("127.0.0.1", server.port))
        line.sendall(sent)
        if ends:
            line.shutdown(socket.SHUT_WR)
        yield line


def socket_with(path: str, *messages: bytes) -> bytes:
    """A handshake of the attacker's, and what follows it at once."""
    return handshake(path, authorization(ATTACKER)) + b"".join(messages)


@dataclass(frozen=True, slots=True)
class Attack:
    """`step` is repeated by so many `callers` at once, each with its number."""

    callers: int
    step: Callable[[ServerProcess, int], None]


@contextmanager
def under(server: ServerProcess, attack: Attack) -> Iterator[Callable[[], int]]:
    """Begins when all callers have begun; gives a function that says how many steps are completed."""
    begun = threading.Barrier(attack.callers + 1)
    over, steps = threading.Event(), [0] * attack.callers

    def run(number: int) -> None:
        begun.wait(_GIVE_UP_S)
        while not over.is_set():
            with suppress(OSError, httpx.TransportError):  # the server may cut it off
                attack.step(server, number)
            steps[number] += 1
            over.wait(0.02)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(attack.callers)]
    for thread in threads:
        thread.start()
    begun.wait(_GIVE_UP_S)
    try:
        yield lambda: sum(steps)
    finally:
        over.set()
        for thread in threads:
            thread.join(_GIVE_UP_S)


def use_processor(over: Event) -> None:
    while not over.is_set():
        pass


def _begin(begun: Barrier, work: Callable[..., object], *arguments: object) -> None:
    begun.wait()
    work(*arguments)


@contextmanager
def programs(*works: tuple[Any, ...]) -> Iterator[None]:
    """Call these functions with their arguments in a process each, which take nothing of the interpreter that measures.
    The last argument is an event that ends them. All have begun."""
    over, begun = _SPAWN.Event(), _SPAWN.Barrier(len(works) + 1)
    running = [_SPAWN.Process(target=_begin, args=(begun, *work, over)) for work in works]
    for process in running:
        process.start()
    begun.wait()  # they import for seconds
    try:
        yield
    finally:
        over.set()
        for process in running:
            process.join()


class Neighbour(Server):
    """Uses the server with a key of its own. Each method fails where the server does not do what it should."""

    def __init__(self, server: ServerProcess, key: str = NEIGHBOUR) -> None:
        super().__init__(base=server.base, key=key)
        self._count = 0

    def is_transcribed(self, audio: bytes | None = None) -> None:
        """The bundled recording, with all of its words. `audio`: in another format than WAV."""
        sample, words = recordings.sample()
        answer = self.transcribe(audio or sample)
        assert (answer.status_code, answer.json().get("text")) == (200, words), answer.text

    def recordings_s(self, times: int, rest_s: float = 0.0, audio: bytes | None = None) -> list[float]:
        """How long each of so many recordings takes, with a rest after each."""
        took_s = []
        for _ in range(times):
            began_s = time.monotonic()
            self.is_transcribed(audio)
            took_s.append(time.monotonic() - began_s)
            time.sleep(rest_s)
        return took_s

    def is_spoken(self) -> None:
        """A sentence that nobody has asked for before."""
        self._count += 1
        asked = {"input": f"Dinner number {self._count} is ready.", "response_format": "pcm"}
        answer = self.client.post("/v1/audio/speech", json=asked)
        assert answer.status_code == 200, answer.text
        assert len(answer.content) > 24_000

    def has_a_voice(self) -> None:
        """One that is stored, listed and deleted."""
        files = [("files[]", ("a.wav", recordings.sample()[0]))]
        stored = self.client.post("/v1/speakers", data={"name": "Ann", "consent": "a test"}, files=files)
        assert stored.status_code == 201, stored.text
        identity = stored.json()["id"]
        assert identity in [voice["id"] for voice in self.client.get("/v1/speakers").json()["data"]]
        assert self.client.delete(f"/v1/speakers/{identity}").status_code == 200


def _descriptors(server: ServerProcess) -> int:
    found = 0
    for pid in family(server.process.pid):
        with suppress(OSError):
            found += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return found


@contextmanager
def nothing_left(server: ServerProcess) -> Iterator[None]:
    """Check that the server holds as much after the block as before: descriptors, sessions, and memory to 64 MiB.

    It waits for that, and fails if it never comes.
    """
    descriptors, memory_mb = _descriptors(server), server.resident_mb()
    yield
    give_up_s = time.monotonic() + _GIVE_UP_S
    while True:
        left = (_descriptors(server) - descriptors, server.health()["live"]["sessions"])
        grown_mb = server.resident_mb() - memory_mb
        if left[0] <= _OTHER_DESCRIPTORS and left[1] == 0 and grown_mb <= MEMORY_MIB:
            return
        assert time.monotonic() < give_up_s, f"descriptors and sessions: {left}, {grown_mb:.0f} MiB"
        time.sleep(0.5)
