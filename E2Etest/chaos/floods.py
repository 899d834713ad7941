"""The data of the flood tests: WebSocket frames and messages, HTTP requests and bodies."""

from __future__ import annotations

import base64
import gc
import http.client
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import NamedTuple

from E2Etest.drive.wire import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame, handshake


def authorization(key: str) -> bytes:
    return f"Authorization: Bearer {key}\r\n".encode()


class Flood(NamedTuple):
    """The first bytes of a connection, and the bytes that it repeats without end."""

    first: bytes
    piece: bytes
    reads: bool = True
    connections: int = 1


KEY = "sk-a-key-of-the-server"
BURST_BYTES = 64 * 1024
LIVE, REALTIME = "/ws/transcribe?use_server_vad=false", "/v1/realtime?intent=transcription"
UNREAD = 10
AUTHORIZED = authorization(KEY)
# Told on the socket that the key is wrong, as a browser is.
REFUSED = b"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-none\r\n"
_FRAMES = {
    "empty continuations": (frame(b"\0", BINARY, is_last=False), frame(b"", CONTINUATION, is_last=False)),
    "pings": (b"", frame(b"", PING)),
    "long pings": (b"", frame(bytes(125), PING)),
    "pongs": (b"", frame(b"", PONG)),
    "messages of 1 byte": (b"", frame(b"\0")),
}
_HEAD = b"Host: localhost\r\n"
_FORM = b"POST /v1/audio/transcriptions HTTP/1.1\r\n" + _HEAD + b"Content-Type: multipart/form-data; boundary=b\r\n"
_FIELD = b'--b\r\nContent-Disposition: form-data; name="hotwords"\r\n\r\n' + b"a," * 4_000_000 + b"\r\n"
_REQUESTS = b"GET / HTTP/1.1\r\n" + _HEAD + b"\r\n"


def _socket(path: str, headers: bytes, burst: bytes, beginning: bytes = b"", *, reads: bool = False) -> Flood:
    """Return a flood of frames after a handshake, which the server may have refused."""
    return Flood(handshake(path, headers) + beginning, burst * max(1, BURST_BYTES // len(burst)), reads)


def _event(**fields: object) -> bytes:
    return frame(json.dumps(fields, ensure_ascii=False).encode(), TEXT)


def _append(size: int) -> bytes:
    return _event(type="input_audio_buffer.append", audio=base64.b64encode(bytes(size)).decode())


_MESSAGES = {
    "flushes": (LIVE, _event(action="flush")),
    "configurations": (LIVE, _event(action="config", language="en") + frame(bytes(64))),
    "unknown actions": (LIVE, _event(action="dance")),
    "clears": (REALTIME, _event(type="input_audio_buffer.clear")),
    "small appends": (REALTIME, _append(60)),
    "turns": (REALTIME, _append(4_800) + _event(type="input_audio_buffer.commit")),
    "nested": (REALTIME, frame(b'{"type":"session.update","session":' + b'{"a":' * 900 + b"1" + b"}" * 901, TEXT)),
    "many values": (REALTIME, frame(b'{"type":"session.update","session":[' + b"[]," * 1_000_000 + b"1]}", TEXT)),
}
FLOODS = {
    "pings, no key": _socket(REALTIME, b"", frame(b"", PING)),
    **{
        f"{name}, {key}": _socket(REALTIME, headers, burst, beginning)
        for name, (beginning, burst) in _FRAMES.items()
        for key, headers in (("wrong key", REFUSED), ("key", AUTHORIZED))
    },
    **{name: _socket(path, AUTHORIZED, burst) for name, (path, burst) in _MESSAGES.items()},
    "requests": Flood(b"", _REQUESTS * 4_000),
    "requests, unread": Flood(b"", _REQUESTS * 4_000, reads=False, connections=UNREAD),
    "chunks": Flood(b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nz\r\n" * 20_000),
    "heads": Flood(b"", b"GET / HTTP/1.1\r\n" + _HEAD + b"a: b\r\n" * 200 + b"\r\n"),
    "fields": Flood(_FORM + AUTHORIZED + b"Content-Length: 190000000\r\n\r\n", _FIELD),
}

_HOTWORDS = _event(action="config", hotwords="\u00e9" * 15_999)
_ARMENIAN = _event(type="text", text=("\u0561\u0589 " * 6_700)[:19_900]) + _event(type="cancel")
# Floods over ten sockets of one key at once.
OF_TEN_SOCKETS = {
    name: _socket(path, AUTHORIZED, burst, beginning, reads=True)
    for name, (path, beginning, burst) in {
        "frames of one byte": ("/ws/transcribe", b"", frame(b"\0")),
        "settled with long hotwords": ("/ws/transcribe", _HOTWORDS, _event(action="settled")),
        "long hotwords": ("/ws/transcribe", b"", _HOTWORDS),
        "resets": ("/ws/transcribe", _HOTWORDS, frame(bytes(12_800)) + _event(action="reset")),
        "texts that are cancelled": ("/ws/speech", b"", _ARMENIAN),
        "sessions that end at once": ("/ws/transcribe", b"", frame(b"", CLOSE)),
        "letters that are cancelled": ("/ws/speech", b"", _event(type="text", text="J.") * 50 + _event(type="cancel")),
    }.items()
}


def pour(port: int, flood: Flood, over: Event) -> int:
    """Send it over one connection, and over the next when the server has ended that. Returns the bytes sent."""
    sent = 0
    while not over.is_set():
        with socket.socket() as line:
            if not flood.reads:  # so that the server's side soon has to keep what is not read
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            try:
                line.connect(("127.0.0.1", port))
                line.sendall(flood.first)
                line.setblocking(False)
                at = 0
                while not over.is_set():
                    readable, writable, _ = select.select([line] if flood.reads else [], [line], [], 0.1)
                    if readable and not line.recv(1 << 20):
                        break
                    if writable:
                        taken = line.send(memoryview(flood.piece)[at:])
                        at, sent = (at + taken) % len(flood.piece), sent + taken
            except OSError:
                over.wait(0.01)
    return sent


def pour_gently(port: int, flood: Flood, over: Event) -> None:
    """Pour at the lowest priority: real attackers use their own processors, not the server's."""
    os.nice(19)
    pour(port, flood, over)


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn garbage collection off while probes are timed: one of the test's process takes a tenth of a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def probed(port: int, probes: int) -> list[float]:
    """Milliseconds of each of so many probes, over new connections."""
    took_ms = []
    for _ in range(probes):
        began_s = time.perf_counter()
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        line.request("GET", "/livez")
        assert line.getresponse().status == 200
        line.close()
        took_ms.append(1000 * (time.perf_counter() - began_s))
        time.sleep(0.02)
    return took_ms
