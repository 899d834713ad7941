"""Slow texts and shared slots: another key's requests still succeed, and SIGTERM ends the server in time."""

import itertools
import statistics
import struct
import time
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import httpx
import pytest

from E2Etest.chaos.neighbours import (
    ATTACKER,
    KEYS,
    NEIGHBOUR,
    Attack,
    Neighbour,
    opened,
    programs,
    request,
    under,
    use_processor,
)
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import act, open_session, receive

pytestmark = [pytest.mark.websocket, pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(600)]

MARKS = "a" + "\u0301" * 50_000 + "\u0316" * 50_000
TEXTS = ["a" + "(" * 250_000, MARKS, "the quick brown fox " * 14_000, '"' * 200_000]
AUTHORIZED = {"Authorization": f"Bearer {ATTACKER}"}


@pytest.fixture
def server(tmp_path):
    """A server with two keys whose model is loaded."""
    with ready(tmp_path / "log", API_KEYS=KEYS, SPEAKERS="auto") as server:
        yield server
    assert "Traceback" not in server.log()


@pytest.fixture
def neighbour(server):
    """The other key's client, which has used everything once."""
    found = Neighbour(server)
    for use in (found.is_transcribed, found.is_spoken, found.has_a_voice):
        use()
    yield found
    found.close()


def _send_slow_texts(base, over):
    """Long texts, some of which once took quadratic time. The client reads no answer, and waits 2 s for one."""
    audio = recordings.sample()[0]
    for text in itertools.cycle(TEXTS):
        segments = [{"start": 0, "end": 1, "text": text[:200_000]}]
        for path, body in (
            ("/v1/audio/alignments", {"files": {"file": ("a.wav", audio), "text": ("t.txt", text.encode())}}),
            ("/v1/audio/transcriptions", {"files": {"file": ("a.wav", audio)}, "data": {"prompt": text[:15_999]}}),
            ("/v1/speakers", {"files": {"files": ("a.wav", audio)}, "data": {"name": text[:60_000], "consent": "yes"}}),
            ("/v1/text/documents", {"json": {"format": "json", "segments": segments}}),
            ("/v1/audio/speech", {"json": {"input": "hello", "language": text[:60_000]}}),
            ("/v1/audio/speech", {"json": {"input": text[:19_000]}}),
        ):
            if over.is_set():
                return
            with (
                suppress(httpx.TransportError),
                httpx.stream("POST", f"{base}{path}", headers=AUTHORIZED, timeout=2, **body),
            ):
                pass


def _beside(server, neighbour):
    """The times of a recording of the other key, and of probes between them."""
    recordings_s, probes_s = [], []
    for _ in range(5):
        began_s = time.monotonic()
        neighbour.is_transcribed()
        recordings_s.append(time.monotonic() - began_s)
        for _ in range(10):
            began_s = time.monotonic()
            assert server.client.get("/livez").status_code == 200
            probes_s.append(time.monotonic() - began_s)
    return recordings_s, probes_s


@pytest.mark.guarantee("texts")
def test_texts_of_one_key_stop_nobody(server, neighbour, measured):
    """Compared with a recording beside two programs that only use the processor, in turns."""
    usual_mb = server.resident_mb()
    control_s, beside_s, probes_s = [], [], []
    for _ in range(2):
        with programs(*[(use_processor,)] * 2):
            control_s += _beside(server, neighbour)[0]
        with programs(*[(_send_slow_texts, server.base)] * 4):
            time.sleep(2)
            found = _beside(server, neighbour)
            beside_s += found[0]
            probes_s += found[1]
    measured("probe_p99_ms", 1000 * sorted(probes_s)[int(0.99 * len(probes_s))])
    measured("beside_ratio", statistics.median(beside_s) / statistics.median(control_s))
    measured("memory_mib", max(0.0, server.resident_mb() - usual_mb))
    with programs(*[(_send_slow_texts, server.base)] * 4):
        time.sleep(2)
        began_s = time.monotonic()
        server.stop()
        measured("exit_s", time.monotonic() - began_s)


def _empty_pages(server, number):
    page = struct.pack("<4sBBqIIIB", b"OggS", 0, 0, 0, 7, 0, 0, 0)
    with open_session(server, encoding="opus") as session:
        session.send(9_000 * page)
        time.sleep(0.5)


@pytest.mark.guarantee("turns")
def test_decoders_and_readers_are_taken_in_turns(server, neighbour):
    """Six sockets of one key send Ogg pages without packets, and readers of one session take all places they may."""
    with ExitStack() as held:
        session = held.enter_context(open_session(server))
        path = f"/v1/live/{session.hello['session_id']}/share"
        token = httpx.post(f"{server.base}{path}", headers=AUTHORIZED, json={}).json()["token"]
        events = request("GET", f"/v1/live/shared/{token}/events")
        readers = [held.enter_context(opened(server, events)) for _ in range(510)]
        refused = sum(reader.recv(12).endswith(b"429") for reader in readers[-10:])
        assert refused == 10
        others = SimpleNamespace(key=NEIGHBOUR, live_url=server.live_url)
        with under(server, Attack(6, _empty_pages)) as steps, open_session(others, encoding="opus") as other:
            for _ in range(10):
                other.send(b"\xf8\xff\xfe")  # a packet of silence
                act(other, "flush")
                while receive(other).get("ending") != "flush":
                    pass
            neighbour.is_transcribed()
        assert steps() >= 6
