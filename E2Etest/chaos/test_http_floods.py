"""HTTP clients that flood the server, do not read, or hardly send: others do not notice, and each has an end."""

import json
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from E2Etest.chaos.floods import FIELD, FORM, KEY, REQUESTS, authorization, connected, pour, probed, without_collection
from E2Etest.drive import recordings
from E2Etest.drive.process import running, until
from E2Etest.drive.procfs import growth

pytestmark = [
    pytest.mark.performance,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.guarantee("one-connection"),
    pytest.mark.timeout(500),
]

KEYS = [KEY, "sk-trailers", "sk-trickles", "sk-steady", "sk-unread", "sk-slow"]
PROBES = 150
UNREAD = 10
# The largest answer to a key without a recording or a job.
LARGE = "/openapi.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """It has answered a request. Each key may have one at a time."""
    log = tmp_path_factory.mktemp("floods") / "log"
    with running(log, API_KEYS=",".join(KEYS), KEY_MAX_REQUESTS="1", IDLE_TIMEOUT="0") as server:
        assert server.transcribe(_sound(0.5)).status_code == 200
        yield server


def _sound(seconds):
    return recordings.wav(np.ones(int(16_000 * seconds), np.int16))


@pytest.mark.parametrize(
    ("flood", "connections"), [("requests", 1), ("requests", UNREAD), ("chunks", 1), ("heads", 1), ("fields", 1)]
)
def test_a_flood_stops_nobody(server, flood, connections, measured, note):
    """Where there are several connections, they read no answer."""
    over = threading.Event()
    with without_collection(), growth(server.process.pid) as grown, ThreadPoolExecutor() as pool:
        floods = [pool.submit(pour, server, REQUESTS[flood], over, reads=connections == 1) for _ in range(connections)]
        try:
            took_ms = probed(server, PROBES)
        finally:
            over.set()
        for poured in floods:
            poured.result()
    measured("probe_p99_ms", statistics.quantiles(took_ms, n=100)[98])
    measured("memory_mib", max(0.0, grown()[0] / connections))
    note(f"{connections} connections with pipelined {flood}" if flood == "requests" else f"a connection with {flood}")
    until(lambda: _status(server, KEYS[0]) == 200)  # its place is free again
    assert "Traceback" not in server.log()


def _trickles(server):
    """What is answered to an upload of which a byte comes now and then, and when."""
    began_s = time.monotonic()
    with connected(server) as line:
        line.sendall(FORM + authorization("sk-trickles") + b"Content-Length: 150000000\r\n\r\n" + FIELD[:50])
        line.settimeout(2)
        answer = b""
        while not answer.endswith(b"}") and time.monotonic() - began_s < 200:
            with suppress(TimeoutError):
                answer += line.recv(65_536)
                continue
            line.sendall(b"z")
    return answer, time.monotonic() - began_s


def _sent_steadily(server):
    """The status of an upload of 1 KB a second."""
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + _sound(3) + b"\r\n--b--\r\n"
    )
    with connected(server) as line:
        line.settimeout(60)
        line.sendall(FORM + authorization("sk-steady") + b"Content-Length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 1_000):
            line.sendall(body[at : at + 1_000])
            time.sleep(1)
        return line.recv(65_536).split(b" ")[1]


def _asked(server, line, key):
    line.sendall(f"GET {LARGE} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\r\n".encode())


def _status(server, key):
    return server.client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code


def _left_unread(server):
    """For how long an answer that is not read keeps the place of its key."""
    with connected(server, buffer_bytes=4_096) as line:
        _asked(server, line, "sk-unread")
        time.sleep(1)
        began_s = time.monotonic()
        while _status(server, "sk-unread") == 429 and time.monotonic() - began_s < 300:
            time.sleep(0.5)
    return time.monotonic() - began_s


def _read_slowly(server):
    """Whether an answer that is read at 2 KB a second comes whole, and whether its key has its place again then."""
    with connected(server) as line:
        _asked(server, line, "sk-slow")
        line.settimeout(30)
        data, began_s = b"", time.monotonic()
        while time.monotonic() - began_s < 90:
            data += line.recv(4_096)
            time.sleep(2)
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        size = len(body)
        while size < length and (part := line.recv(1 << 20)):
            size += len(part)
        return size == length and _status(server, "sk-slow") == 200


def test_slow_peers_have_an_end_and_steady_ones_go_on(server):
    """Uploads and readers: two that do nearly nothing, and two that are slow."""
    with ThreadPoolExecutor() as pool:
        works = [pool.submit(work, server) for work in (_trickles, _sent_steadily, _left_unread, _read_slowly)]
        (answer, after_s), steady, unread_s, is_whole = [work.result() for work in works]
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "upload_stalled"
    assert after_s < 150
    assert steady == b"200"
    assert 100 < unread_s < 300
    assert is_whole
