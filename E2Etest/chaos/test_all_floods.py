"""All floods at once, each from a process of its own: a server must not add up what each of them may use."""

import multiprocessing
import os
import statistics
import threading
import time
from contextlib import contextmanager

import pytest

from E2Etest.chaos.floods import (
    AUTHORIZED,
    FRAMES,
    KEY,
    MESSAGES,
    REALTIME,
    REFUSED,
    REQUESTS,
    Flood,
    pour,
    probed,
    without_collection,
)
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import data, pieces, stream
from E2Etest.drive.wire import BINARY, frame

pytestmark = [
    pytest.mark.performance,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.guarantee("one-connection"),
    pytest.mark.timeout(300),
]

UNREAD = 30
PROBES = 300


def _flood_frames(server, args):
    os.nice(19)  # those who flood have machines of their own
    with Flood(server, *args):
        time.sleep(1_000)


def _flood_requests(server, flood, reads):
    os.nice(19)
    pour(server, flood, threading.Event(), reads=reads)


class _Address:
    """What a flood needs of a server, in another process."""

    def __init__(self, port):
        self.port = port


@contextmanager
def _all_floods(server):
    where, processes = _Address(server.port), multiprocessing.get_context("spawn")
    floods = []
    for name, burst in FRAMES.items():
        beginning = frame(b"\0", BINARY, is_last=False) if name == "empty continuations" else b""
        floods += [
            processes.Process(target=_flood_frames, args=(where, (REALTIME, headers, burst, beginning)))
            for headers in (REFUSED, AUTHORIZED)
        ]
    for path, burst in MESSAGES.values():
        floods.append(processes.Process(target=_flood_frames, args=(where, (path, AUTHORIZED, burst))))
    for flood in REQUESTS.values():
        floods.append(processes.Process(target=_flood_requests, args=(where, flood, True)))
    for flood in floods:
        flood.start()
    stop = threading.Event()
    unread = [
        threading.Thread(target=pour, args=(server, REQUESTS["requests"], stop), kwargs={"reads": False})
        for _ in range(UNREAD)
    ]
    for thread in unread:
        thread.start()
    try:
        yield len(floods) + UNREAD
    finally:
        stop.set()
        for flood in floods:
            flood.kill()
            flood.join()
        for thread in unread:
            thread.join()


def test_all_at_once_stop_nobody(tmp_path, measured, note):
    """Each with the bound of one, and the probe still has its turn."""
    with ready(tmp_path / "log", API_KEYS=KEY, LOG_LEVEL="INFO") as server:
        stream(server, pieces(data(recordings.samples()), 32_000))
        with without_collection(), _all_floods(server) as connections:
            time.sleep(8)  # until all processes have started
            took_ms = probed(server, PROBES)
        measured("together_p99_ms", statistics.quantiles(took_ms, n=100, method="inclusive")[98])
        note(f"{connections} connections that flood at once: median {statistics.median(took_ms):.0f} ms")
