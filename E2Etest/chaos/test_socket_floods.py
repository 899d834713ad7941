"""Connections send WebSocket frames as fast as they go, one and ten of a key: the others are served all the same."""

import json
import statistics
import time
from contextlib import closing
from types import SimpleNamespace

import httpx
import pytest

from E2Etest.chaos.floods import (
    AUTHORIZED,
    BURST_BYTES,
    FRAMES,
    KEY,
    MESSAGES,
    REALTIME,
    REFUSED,
    Flood,
    authorization,
    pour,
    without_collection,
)
from E2Etest.chaos.neighbours import Neighbour, programs, use_processor
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import data, pieces, stream
from E2Etest.drive.wire import BINARY, CLOSE, TEXT, frame, handshake

pytestmark = [
    pytest.mark.websocket,
    pytest.mark.performance,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.timeout(300),
]
one_connection = pytest.mark.guarantee("one-connection")

FLOOD_S = 5.0
PROBE_EVERY_S = 0.01
OTHER = "sk-another-key-of-the-server"
SOCKETS = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """It has served a session of both kinds, so that all is loaded that one needs."""
    log = tmp_path_factory.mktemp("floods") / "log"
    with ready(log, API_KEYS=f"{KEY},{OTHER}", LOG_LEVEL="INFO", WS_RESUME_S="0") as server:
        stream(server, pieces(data(recordings.samples()), 32_000))
        with Flood(server, REALTIME, AUTHORIZED, MESSAGES["turns"][1]):
            time.sleep(1)
        yield server


def _measure(server, flood, measured):
    usual_mb, most_mb, took_s = server.resident_mb(), 0.0, []
    with without_collection(), flood, httpx.Client(base_url=server.base, timeout=60) as prober:
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


@one_connection
@pytest.mark.parametrize(
    ("name", "headers"),
    [("pings", b""), *((name, headers) for name in FRAMES for headers in (REFUSED, AUTHORIZED))],
    ids=["pings, no key", *(f"{name}, {key}" for name in FRAMES for key in ("wrong key", "key"))],
)
def test_tiny_frames_as_fast_as_they_go(server, name, headers, measured):
    """Also behind a handshake that is denied, and while the close of a refused one is awaited."""
    beginning = frame(b"\0", BINARY, is_last=False) if name == "empty continuations" else b""
    _measure(server, Flood(server, REALTIME, headers, FRAMES[name], beginning), measured)


@one_connection
@pytest.mark.parametrize("name", MESSAGES)
def test_messages_as_fast_as_they_go(server, name, measured, note):
    """Of one who has a key."""
    path, burst = MESSAGES[name]
    _measure(server, Flood(server, path, AUTHORIZED, burst), measured)
    note(f"{name} as fast as they go")


def _message(**fields):
    return frame(json.dumps(fields, ensure_ascii=False).encode(), TEXT)


HOTWORDS = _message(action="config", hotwords="\u00e9" * 15_999)
ARMENIAN = _message(type="text", text=("\u0561\u0589 " * 6_700)[:19_900]) + _message(type="cancel")
# The path, what is sent first, and what is sent without end.
MANY = {
    "frames of one byte": ("/ws/transcribe", b"", frame(b"\0")),
    "settled with long hotwords": ("/ws/transcribe", HOTWORDS, _message(action="settled")),
    "long hotwords": ("/ws/transcribe", b"", HOTWORDS),
    "resets": ("/ws/transcribe", HOTWORDS, frame(bytes(12_800)) + _message(action="reset")),
    "texts that are cancelled": ("/ws/speech", b"", ARMENIAN),
    "sessions that end at once": ("/ws/transcribe", b"", frame(b"", CLOSE)),
    "letters that are cancelled": ("/ws/speech", b"", _message(type="text", text="J.") * 50 + _message(type="cancel")),
}


def _pour(port, flood, over):
    pour(SimpleNamespace(port=port), flood, over, reads=True)


def _recording_s(server):
    """The median time of a recording by the other key, after one that is not counted."""
    with closing(Neighbour(server, OTHER)) as neighbour:
        return statistics.median(neighbour.recordings_s(10, 0.05)[1:])


@pytest.mark.guarantee("floods")
@pytest.mark.parametrize("name", MANY)
def test_a_recording_beside_ten_sockets_of_another_key(server, name, measured, note):
    """Compared with one next to two programs that only use the processor."""
    with programs(2, use_processor):
        time.sleep(1)
        control_s = _recording_s(server)
    path, first, burst = MANY[name]
    flood = (handshake(path, authorization(KEY)) + first, burst * max(1, BURST_BYTES // len(burst)))
    usual_mb = server.resident_mb()
    with programs(SOCKETS, _pour, server.port, flood):
        time.sleep(2)
        beside_s = _recording_s(server)
        held_mb = server.resident_mb() - usual_mb
    measured("beside_ratio", beside_s / control_s)
    measured("memory_mib", max(0.0, held_mb))
    note(f"beside ten sockets: {name}")
