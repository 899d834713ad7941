"""The data that the flood tests send as fast as they can: WebSocket frames and messages, HTTP requests and bodies."""

import base64
import gc
import http.client
import json
import select
import socket
import threading
import time
from contextlib import contextmanager, suppress

from E2Etest.drive.wire import CONTINUATION, PING, PONG, TEXT, frame, handshake


def authorization(key):
    """The header line of a key."""
    return f"Authorization: Bearer {key}\r\n".encode()


KEY = "sk-a-key-of-the-server"
BURST_BYTES = 64 * 1024
LIVE, REALTIME = "/ws/transcribe?use_server_vad=false", "/v1/realtime?intent=transcription"
AUTHORIZED = authorization(KEY)
# Told on the socket that the key is wrong, as a browser is.
REFUSED = b"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-none\r\n"


def _event(**fields):
    return frame(json.dumps(fields).encode(), TEXT)


def _append(size):
    return _event(type="input_audio_buffer.append", audio=base64.b64encode(bytes(size)).decode())


FRAMES = {
    "empty continuations": frame(b"", CONTINUATION, is_last=False),
    "pings": frame(b"", PING),
    "long pings": frame(bytes(125), PING),
    "pongs": frame(b"", PONG),
    "messages of 1 byte": frame(b"\0"),
}
MESSAGES = {
    "flushes": (LIVE, _event(action="flush")),
    "configurations": (LIVE, _event(action="config", language="en") + frame(bytes(64))),
    "unknown actions": (LIVE, _event(action="dance")),
    "clears": (REALTIME, _event(type="input_audio_buffer.clear")),
    "small appends": (REALTIME, _append(60)),
    "turns": (REALTIME, _append(4_800) + _event(type="input_audio_buffer.commit")),
    "nested": (REALTIME, frame(b'{"type":"session.update","session":' + b'{"a":' * 900 + b"1" + b"}" * 901, TEXT)),
    "many values": (REALTIME, frame(b'{"type":"session.update","session":[' + b"[]," * 1_000_000 + b"1]}", TEXT)),
}


@contextmanager
def without_collection():
    """Turn garbage collection off while probes are timed: one of the test's process takes a tenth of a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Flood:
    """Sends the same bytes again and again, and reads nothing. It comes back when it is cut off."""

    def __init__(self, server, path, headers, burst, beginning=b""):
        self._address = ("127.0.0.1", server.port)
        self._beginning = handshake(path, headers), beginning
        self._burst = burst * max(1, BURST_BYTES // len(burst))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent_bytes = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.is_set():
            try:
                with socket.create_connection(self._address, timeout=1) as line:
                    request, beginning = self._beginning
                    line.sendall(request)
                    line.recv(4_096)
                    line.sendall(beginning)
                    self._send(line)
            except OSError:
                time.sleep(0.01)

    def _send(self, line):
        rest = b""
        while not self._over.is_set():
            rest = rest or self._burst
            try:
                sent = line.send(rest)
            except TimeoutError:
                continue
            self.sent_bytes += sent
            rest = rest[sent:]


FORM = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
FIELD = b'--b\r\nContent-Disposition: form-data; name="hotwords"\r\n\r\n' + b"a," * 4_000_000 + b"\r\n"
# What a connection sends first, and then without end.
REQUESTS = {
    "requests": (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4_000),
    "chunks": (b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nz\r\n" * 20_000),
    "heads": (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 200 + b"\r\n"),
    "fields": (FORM + AUTHORIZED + b"Content-Length: 190000000\r\n\r\n", FIELD),
}


def connected(server, *, buffer_bytes=0):
    """A connection, of whose answers the system takes that many bytes at most."""
    line = socket.socket()
    if buffer_bytes:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    line.connect(("127.0.0.1", server.port))
    return line


def pour(server, flood, over, *, reads):
    """Send it over one connection, and over the next when the server has ended that."""
    first, piece = flood
    while not over.is_set():
        with connected(server, buffer_bytes=0 if reads else 4_096) as line, suppress(OSError):
            line.sendall(first)
            line.setblocking(False)
            at = 0
            while not over.is_set():
                readable, writable, _ = select.select([line] if reads else [], [line], [], 0.1)
                if readable and not line.recv(1 << 20):
                    break
                if writable:
                    at = (at + line.send(memoryview(piece)[at:])) % len(piece)


def probed(server, probes):
    """Milliseconds of each of so many probes, over new connections."""
    took_ms = []
    for _ in range(probes):
        began_s = time.perf_counter()
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        line.request("GET", "/livez")
        assert line.getresponse().status == 200
        line.close()
        took_ms.append(1000 * (time.perf_counter() - began_s))
        time.sleep(0.02)
    return took_ms
