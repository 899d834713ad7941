"""Slow texts: another key's requests still succeed, and SIGTERM ends the server in time."""

import itertools
import statistics
import time
from contextlib import closing, suppress

import httpx
import pytest

from E2Etest.chaos.neighbours import ATTACKER, KEYS, Neighbour, programs, use_processor
from E2Etest.drive import recordings
from E2Etest.drive.process import ready

pytestmark = pytest.mark.websocket

MARKS = "a" + "\u0301" * 50_000 + "\u0316" * 50_000
TEXTS = ["a" + "(" * 250_000, MARKS, "the quick brown fox " * 14_000, '"' * 200_000]
AUTHORIZED = {"Authorization": f"Bearer {ATTACKER}"}


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
def test_texts_of_one_key_stop_nobody(tmp_path, measured):
    """The baseline, measured in turns, is a recording beside two programs that only use the processor. SIGTERM ends
    the server."""
    control_s, beside_s, probes_s = [], [], []
    with ready(tmp_path / "log", API_KEYS=KEYS, SPEAKERS="auto") as server, closing(Neighbour(server)) as neighbour:
        for use in (neighbour.is_transcribed, neighbour.is_spoken, neighbour.has_a_voice):
            use()
        usual_mb = server.resident_mb()
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
        assert "Traceback" not in server.log()
