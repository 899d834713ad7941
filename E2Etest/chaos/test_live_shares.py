"""Live sessions that one key leaves behind: what they hold, and what another key's recording takes beside them."""

import statistics
from contextlib import closing, suppress

import pytest
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect

from E2Etest.chaos.neighbours import ATTACKER, KEYS, Neighbour
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import data

pytestmark = [pytest.mark.websocket, pytest.mark.performance, pytest.mark.guarantee("shares")]

MIB = 1024 * 1024
SESSIONS = 32
FRAME = data(recordings.samples())
FRAME = (FRAME * (16 * MIB // len(FRAME) + 1))[: 16 * MIB]
ROUNDS = 5


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A server with the model. What its C library frees goes back at once."""
    log = tmp_path_factory.mktemp("shares") / "log"
    settings = {"API_KEYS": KEYS, "MALLOC_MMAP_THRESHOLD_": "65536", "LOG_LEVEL": "WARNING", "WS_RESUME_S": "300"}
    with ready(log, **settings) as server:
        yield server
        server.process.kill()  # it would transcribe what was left behind


def _abandon(server):
    """A session that gets 8 minutes of speech in one frame, and whose connection breaks. Whether it was opened."""
    headers = {"Authorization": f"Bearer {ATTACKER}"}
    try:
        session = connect(server.live_url, additional_headers=headers, compression=None, max_size=None, open_timeout=30)
    except InvalidStatus:
        return False
    session.recv(timeout=30)
    with suppress(WebSocketException, OSError):
        session.send(FRAME)
    session.socket.close()
    return True


def test_abandoned_sessions_hold_little_and_stop_nobody(loaded, sample, measured, note):
    """By default one key has no limit but that of live sessions: it abandons 512 MiB of audio in 32 of them. Only what
    has room is taken, and the recording of another key goes first."""
    with closing(Neighbour(loaded)) as neighbour:
        alone_s = statistics.median(neighbour.recordings_s(ROUNDS, audio=sample[0]))
        before_mb = most_mb = loaded.resident_mb()
        opened = 0
        for _ in range(SESSIONS):
            opened += _abandon(loaded)
            most_mb = max(most_mb, loaded.resident_mb())
        beside_s = statistics.median(neighbour.recordings_s(ROUNDS, audio=sample[0]))
    most_mb = max(most_mb, loaded.resident_mb())
    measured("beside_ratio", beside_s / alone_s)
    measured("live_mib", most_mb - before_mb)
    note(f"{SESSIONS * len(FRAME) // MIB} MiB of audio in {opened} abandoned live sessions")
