"""One connection sends WebSocket frames as fast as they go: the others are served all the same."""

import base64
import json
import socket
import statistics
import threading
import time

import httpx
import pytest

from E2Etest import recordings
from E2Etest.live.session import data, pieces, stream
from E2Etest.process import ready
from E2Etest.wire import BINARY, CONTINUATION, PING, PONG, TEXT, frame, handshake

pytestmark = [
    pytest.mark.websocket,
    pytest.mark.performance,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.guarantee("one-connection"),
    pytest.mark.timeout(300),
]

KEY = "sk-a-key-of-the-server"
FLOOD_S = 5.0
PROBE_EVERY_S = 0.01
BURST_BYTES = 64 * 1024
LIVE, REALTIME = "/ws/transcribe?use_server_vad=false", "/v1/realtime?intent=transcription"
AUTHORIZED = b"Authorization: Bearer %b\r\n" % KEY.encode()
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


@pytest.fixture(scope="module", params=["plain", "gateway"])
def server(request, tmp_path_factory):
    """It has served a session of both kinds, so that all is loaded that one needs."""
    log = tmp_path_factory.mktemp("floods") / "log"
    gateway = {"GATEWAY_MODE": "true"} if request.param == "gateway" else {}
    with ready(log, API_KEYS=KEY, LOG_LEVEL="INFO", WS_RESUME_S="0", **gateway) as server:
        stream(server, pieces(data(recordings.samples()), 32_000))
        with Flood(server, REALTIME, AUTHORIZED, MESSAGES["turns"][1]):
            time.sleep(1)
        yield server


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


def _measure(server, flood, measured):
    usual_mb, most_mb, took_s = server.resident_mb(), 0.0, []
    with flood, httpx.Client(base_url=server.base, timeout=60) as prober:
        ends_s = time.monotonic() + FLOOD_S
        while time.monotonic() < ends_s:
            began_s = time.monotonic()
            assert prober.get("/livez").status_code == 200
            took_s.append(time.monotonic() - began_s)
            most_mb = max(most_mb, server.resident_mb())
            time.sleep(PROBE_EVERY_S)
    assert flood.sent_bytes > BURST_BYTES
    took_s += took_s[:1]  # quantiles need two
    measured("probe_p99_ms", 1000 * statistics.quantiles(took_s, n=100, method="inclusive")[98])
    measured("memory_mib", max(0.0, most_mb - usual_mb))


@pytest.mark.parametrize(
    ("name", "headers"),
    [("pings", b""), *((name, headers) for name in FRAMES for headers in (REFUSED, AUTHORIZED))],
    ids=["pings, no key", *(f"{name}, {key}" for name in FRAMES for key in ("wrong key", "key"))],
)
def test_tiny_frames_as_fast_as_they_go(server, name, headers, measured):
    """Also behind a handshake that is denied, and while the close of a refused one is awaited."""
    beginning = frame(b"\0", BINARY, is_last=False) if name == "empty continuations" else b""
    _measure(server, Flood(server, REALTIME, headers, FRAMES[name], beginning), measured)


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_as_fast_as_they_go(server, name, measured, note):
    """Of one who has a key."""
    path, burst = MESSAGES[name]
    _measure(server, Flood(server, path, AUTHORIZED, burst), measured)
    note(f"{name} as fast as they go")
