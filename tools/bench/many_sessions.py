"""Does one process serve 400 live sessions of real speech? How late is its event loop, and what does a session take?

Each session has a key of its own, as sessions of people have addresses of their own. The clients are raw sockets in
this process, which send what was made before: they have to leave the server its core. Beside them `/livez` is asked.
"""

from __future__ import annotations

import base64
import heapq
import json
import os
import selectors
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from E2Etest.live.session import pcm_of
from E2Etest.process import ServerProcess, ready
from E2Etest.recordings import real_clips
from E2Etest.workers import processes

SESSIONS, SECONDS, WARM_UP_S = 400, 30.0, 10.0
CHUNK_S = 0.1
PARTIAL_S = 0.6
_LAST_S = 20.0  # for the finals after the flush
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10


@dataclass
class _Client:
    """One session."""

    socket: socket.socket
    next_chunk: int  # of the audio, which is a ring
    left: int  # chunks to send
    received: bytearray = field(default_factory=bytearray)
    is_done: bool = False  # the final of the flush has come


@dataclass
class _Heard:
    """Counts the messages that clients got, and how late they were."""

    messages: Counter[str] = field(default_factory=Counter)
    partials_ms: list[int] = field(default_factory=list)  # after the warm-up, as the server states them
    late_ms: list[float] = field(default_factory=list)  # of the clients themselves


def measure(
    sessions: int = SESSIONS, seconds: float = SECONDS, model_id: str = "fake", *, silent: bool = False
) -> dict[str, object]:
    """Milliseconds, MiB, and milliseconds of processor for each second of a session, by thread."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        settings = _settings(sessions, model_id) | {"LOOP_TIMES": str(times)}
        program = (str(Path(__file__).with_name("timed_server.py")),)
        with ready(Path(folder) / "log", program=program, **settings) as server:
            return {
                "question": f"{sessions} sessions of real speech for {seconds:g} s, {model_id} engine",
                **_figures(server, times, sessions, seconds, [_SILENCE] if silent else _chunks()),
                "target": "event loop late p99 < 20 ms, none lost, /livez p99 < 100 ms",
            }


def _settings(sessions: int, model_id: str) -> dict[str, str]:
    return {
        "MODEL_ID": model_id,
        "API_KEYS": ",".join(_key(number) for number in range(sessions + 1)),
        "MAX_LIVE_SESSIONS": str(2 * sessions),
        "WS_BUFFER_SIZE": str(int(PARTIAL_S * 2 * SAMPLE_RATE)),
        "LOG_LEVEL": "INFO",
    }


def _figures(
    server: ServerProcess, times: Path, sessions: int, seconds: float, audio: list[bytes]
) -> dict[str, object]:
    empty_mib = server.own_mb()
    clients = _open(server.port, sessions)
    open_mib = server.own_mb()
    for number, client in enumerate(clients):
        client.next_chunk = number * len(audio) // sessions
        client.left = int((WARM_UP_S + seconds) / CHUNK_S)
    asked, stop, mib = [], threading.Event(), []
    probe = threading.Thread(target=_probe, args=(server.port, _key(sessions), asked, stop))

    def at_second(second: int) -> None:
        if second == int(WARM_UP_S):
            asked.clear()
        elif second == int(WARM_UP_S + seconds) - 1:
            mib.append(server.own_mb())

    began_s = time.time()
    probe.start()
    heard = _play(clients, audio, at_second, CHUNK_S)
    stop.set()
    probe.join()
    lines = [
        line
        for line in map(json.loads, times.read_text().splitlines())
        if WARM_UP_S <= line[0] - began_s <= WARM_UP_S + seconds
    ]
    (first_s, _, before), *_, (last_s, _, after) = lines
    return {
        "loop_late_ms": _ranks([one for _, values, _ in lines for one in values]),
        "livez_ms": _ranks(asked),
        "partial_ms": _ranks(heard.partials_ms),
        "clients_late_ms": _ranks(heard.late_ms),
        "messages": dict(heard.messages),
        "lost": sum(not client.is_done for client in clients),
        "threads_ms_per_s": {
            name: round(1000 * (took_s - before.get(name, 0.0)) / sessions / (last_s - first_s), 3)
            for name, took_s in after.items()
        },
        "mib_per_open_session": round((open_mib - empty_mib) / sessions, 3),
        "mib_per_speaking_session": round((mib[0] - empty_mib) / sessions, 3),
    }


def measure_front_ends(
    sessions: int = 1_000, workers: int = 4, pace: float = 0.25, seconds: float = SECONDS, model_id: str = "fake"
) -> dict[str, object]:
    """`WORKERS` front ends, whose sessions send at a part of the pace of speech, so that few cores stand for more.

    Milliseconds, MiB, and milliseconds of processor for each second of speech of a session, by kind of process.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(sessions, model_id) | {"WORKERS": str(workers)}
        with ready(Path(folder) / "log", **settings) as server:
            empty_mib = server.resident_mb()
            clients, audio = _open(server.port, sessions), _chunks()
            for number, client in enumerate(clients):
                client.next_chunk = number * len(audio) // sessions
                client.left = int((WARM_UP_S + seconds) * pace / CHUNK_S)
            asked, stop, read = [], threading.Event(), []
            # A connection is at one front end: with so many all are asked.
            probes = [
                threading.Thread(target=_probe, args=(server.port, _key(sessions), asked, stop))
                for _ in range(4 * workers)
            ]
            for probe in probes:
                probe.start()

            def at_second(second: int) -> None:
                if second in (int(WARM_UP_S), int(WARM_UP_S + seconds) - 1):
                    read.append((time.monotonic(), _processes_s(server)))
                    if second == int(WARM_UP_S):
                        asked.clear()
                    else:
                        read.append(server.resident_mb())

            heard = _play(clients, audio, at_second, CHUNK_S / pace)
            stop.set()
            for probe in probes:
                probe.join()
    (began_s, before), (ended_s, after), mib = read
    speech_s = (ended_s - began_s) * pace * sessions
    return {
        "question": f"{sessions} sessions at {pace:g} of the pace of speech, {workers} front ends, {model_id} engine",
        "livez_ms": _ranks(asked),
        "partial_ms": _ranks(heard.partials_ms),
        "clients_late_ms": _ranks(heard.late_ms),
        "messages": dict(heard.messages),
        "lost": sum(not client.is_done for client in clients),
        "processes_ms_per_s": {
            name: round(1000 * (took_s - before[name]) / speech_s, 3) for name, took_s in after.items()
        },
        "mib_empty": round(empty_mib, 1),
        "mib_per_session": round((mib - empty_mib) / sessions, 3),
        "target": "none lost, /livez p99 < 100 ms",
    }


def _processes_s(server: ServerProcess) -> dict[str, float]:
    """Return the seconds of processor so far, by kind of process."""
    kinds = {"front ends": processes.front_ends, "jobs": processes.with_jobs, "engine": processes.engines}
    pids = {"supervisor": [server.process.pid], **{name: find(server) for name, find in kinds.items()}}
    return {name: sum(map(_processor_s, found)) for name, found in pids.items()}


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _ranks(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    at = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2) for name, part in at.items()}


def _key(number: int) -> str:
    return f"{number:032x}"


def _open(port: int, sessions: int) -> list[_Client]:
    nonce = base64.b64encode(os.urandom(16)).decode()
    found = []
    for number in range(sessions):
        peer = socket.create_connection(("127.0.0.1", port))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(
            f"GET /ws/transcribe HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {_key(number)}\r\n"
            f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {nonce}\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += peer.recv(4096)
        assert b" 101 " in answer.partition(b"\r\n")[0], answer
        client = _Client(peer, 0, 0, bytearray(answer.partition(b"\r\n\r\n")[2]))
        while not (hello := _messages(client)):
            client.received += peer.recv(4096)
        assert hello[0].get("status") == "connected", hello
        peer.setblocking(False)
        found.append(client)
    return found


def _frame(kind: int, payload: bytes) -> bytes:
    """Return a client's frame. Its mask is zero, which changes nothing: the frame is made once for all clients."""
    length = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, len(payload))
    return length + bytes(4) + payload


_SILENCE = _frame(_BINARY, bytes(int(2 * CHUNK_S * SAMPLE_RATE)))


def _chunks() -> list[bytes]:
    pcm = np.concatenate([pcm_of(clip.path) for clip in real_clips()])
    samples = int(CHUNK_S * SAMPLE_RATE)
    return [_frame(_BINARY, pcm[at : at + samples].tobytes()) for at in range(0, len(pcm) - samples, samples)]


def _messages(client: _Client) -> list[dict]:
    """Take the complete messages out of what was received."""
    data, at, found = client.received, 0, []
    while len(data) >= at + 2:
        kind, size, head = data[at] & 15, data[at + 1], 2
        if size == 126:
            size, head = int.from_bytes(data[at + 2 : at + 4], "big"), 4
        elif size == 127:
            size, head = int.from_bytes(data[at + 2 : at + 10], "big"), 10
        if len(data) < at + head + size:
            break
        if kind == _TEXT:
            found.append(json.loads(data[at + head : at + head + size]))
        elif kind == _PING:
            client.socket.send(bytes([0x80 | _PONG, 0x80 | size]) + bytes(4) + data[at + head : at + head + size])
        elif kind == _CLOSE:
            found.append({"error": "closed"})
        at += head + size
    del data[:at]
    return found


def _play(clients: list[_Client], audio: list[bytes], at_second, every_s: float) -> _Heard:
    heard, chosen = _Heard(), selectors.DefaultSelector()
    for client in clients:
        chosen.register(client.socket, selectors.EVENT_READ, client)
    began_s, second = time.monotonic(), 0
    due = [(began_s + every_s * number / len(clients), number) for number in range(len(clients))]
    flush = _frame(_TEXT, json.dumps({"action": "flush"}).encode())
    end_s = began_s + every_s * clients[0].left + _LAST_S
    while not all(client.is_done for client in clients) and time.monotonic() < end_s:
        if (passed := int(time.monotonic() - began_s)) > second:
            second = passed
            at_second(second)
        now_s = time.monotonic()
        for _ in range(20):
            if not due or due[0][0] > now_s:
                break
            at_s, number = heapq.heappop(due)
            client = clients[number]
            heard.late_ms.append(1000 * (now_s - at_s))
            with suppress(ConnectionError):  # the session is lost
                client.socket.send(audio[client.next_chunk % len(audio)] if client.left else flush)
            if client.left:
                client.next_chunk, client.left = client.next_chunk + 1, client.left - 1
                heapq.heappush(due, (at_s + every_s, number))
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else 0.1
        for key, _ in chosen.select(min(wait_s, 0.1)):
            try:
                _read(key.data, heard, counts=second >= WARM_UP_S)
            except ConnectionError:
                chosen.unregister(key.fileobj)
                key.data.left = 0
    return heard


def _read(client: _Client, heard: _Heard, *, counts: bool) -> None:
    client.received += client.socket.recv(65_536)
    for message in _messages(client):
        kind = "error" if "error" in message else "final" if message.get("is_final") else "partial"
        heard.messages[kind] += 1
        client.is_done |= message.get("ending") == "flush"
        if kind == "partial" and counts and message.get("text"):
            heard.partials_ms.append(message["lag_ms"])


def _probe(port: int, key: str, asked: list[float], stop: threading.Event) -> None:
    """Ask for `/livez` ten times a second."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        while not stop.wait(0.1):
            began_s = time.monotonic()
            peer.sendall(f"GET /livez HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
            answer = b""
            while not answer.endswith(b"}"):
                answer += peer.recv(4096)
            asked.append(1000 * (time.monotonic() - began_s))
