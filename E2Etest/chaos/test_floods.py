"""Floods do not stop other callers: one connection at a time, ten of one key, and all of them at once."""

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from E2Etest.chaos.floods import (
    BURST_BYTES,
    FLOODS,
    KEY,
    OF_TEN_SOCKETS,
    pour,
    pour_gently,
    probed,
    without_collection,
)
from E2Etest.chaos.neighbours import Neighbour, programs, use_processor
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.procfs import growth
from E2Etest.drive.session import data, pieces, stream

pytestmark = [pytest.mark.websocket, pytest.mark.performance]
one_connection = pytest.mark.guarantee("one-connection")

OTHER = "sk-another-key-of-the-server"
SOCKETS, UNREAD = 10, 29
PROBES = 100


@contextmanager
def _poured(server, flood, connections):
    """Flood until the block ends. Each connection must have sent more than one burst by then."""
    over = threading.Event()
    with ThreadPoolExecutor(connections) as pool:
        floods = [pool.submit(pour, server.port, flood, over) for _ in range(connections)]
        try:
            yield
        finally:
            over.set()
    assert all(sent.result() > BURST_BYTES for sent in floods)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start a server and send it one request of each kind, so that everything is loaded."""
    log = tmp_path_factory.mktemp("floods") / "log"
    with ready(log, API_KEYS=f"{KEY},{OTHER}", LOG_LEVEL="INFO", WS_RESUME_S="0") as server:
        stream(server, pieces(data(recordings.samples()), 32_000))
        assert server.transcribe(recordings.sample()[0]).status_code == 200
        with _poured(server, FLOODS["turns"], 1):
            time.sleep(1)
        yield server
        assert "Traceback" not in server.log()


@one_connection
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_stops_nobody(server, name, measured, note):
    """The server's memory does not grow either, whether the client reads the answers or not."""
    flood = FLOODS[name]
    with without_collection(), growth(server.process.pid) as grown, _poured(server, flood, flood.connections):
        took_ms = probed(server.port, PROBES)
    measured("probe_p99_ms", statistics.quantiles(took_ms, n=100)[98])
    measured("memory_mib", max(0.0, grown()[0] / flood.connections))
    note(f"{flood.connections} connections with {name}" if flood.connections > 1 else f"a connection with {name}")


@one_connection
def test_all_floods_at_once_stop_nobody(server, measured, note):
    """Each flood runs in its own process, beside many requests whose answers nobody reads: shares do not add up."""
    works = [(pour_gently, server.port, flood) for flood in FLOODS.values() if flood.connections == 1]
    with without_collection(), programs(*works), _poured(server, FLOODS["requests, unread"], UNREAD):
        time.sleep(1)
        took_ms = probed(server.port, 3 * PROBES)
    measured("together_p99_ms", statistics.quantiles(took_ms, n=100)[98])
    median_ms = statistics.median(took_ms)
    note(f"{len(works) + UNREAD} connections that flood at once: median {median_ms:.0f} ms")


def _recording_s(server):
    """Return the median time of the other key's recordings, without the first one."""
    with closing(Neighbour(server, OTHER)) as neighbour:
        return statistics.median(neighbour.recordings_s(10, 0.05)[1:])


@pytest.mark.guarantee("floods")
@pytest.mark.parametrize("name", OF_TEN_SOCKETS)
def test_a_recording_beside_ten_sockets_of_another_key(server, name, measured, note):
    """The recording takes at most 2.5 times as long as it does next to two programs that only use the processor."""
    with programs(*[(use_processor,)] * 2):
        time.sleep(1)
        control_s = _recording_s(server)
    usual_mb = server.resident_mb()
    with programs(*[(pour, server.port, OF_TEN_SOCKETS[name])] * SOCKETS):
        time.sleep(2)
        beside_s = _recording_s(server)
        held_mb = server.resident_mb() - usual_mb
    measured("beside_ratio", beside_s / control_s)
    measured("memory_mib", max(0.0, held_mb))
    note(f"beside ten sockets: {name}")
