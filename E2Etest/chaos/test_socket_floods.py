"""One connection sends WebSocket frames as fast as they go: the others are served all the same."""

import statistics
import time

import httpx
import pytest

from E2Etest import recordings
from E2Etest.chaos.floods import (
    AUTHORIZED,
    BURST_BYTES,
    FRAMES,
    KEY,
    MESSAGES,
    REALTIME,
    REFUSED,
    Flood,
    without_collection,
)
from E2Etest.live.session import data, pieces, stream
from E2Etest.process import ready
from E2Etest.wire import BINARY, frame

pytestmark = [
    pytest.mark.websocket,
    pytest.mark.performance,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.guarantee("one-connection"),
    pytest.mark.timeout(300),
]

FLOOD_S = 5.0
PROBE_EVERY_S = 0.01


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
