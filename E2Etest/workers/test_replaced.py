"""Processes of one server that are replaced one by one, or die, while callers of every kind are at work."""

import os
import signal
import time

import pytest

from E2Etest import recordings
from E2Etest.gateway.workers import wait_until_gone
from E2Etest.process import ready
from E2Etest.replicas.load import calling
from E2Etest.replicas.speaker import Speaker, check
from E2Etest.workers.processes import engines, front_ends, kill, ledgers, replaced, with_jobs

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.websocket,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

SPEAKERS = 4


@pytest.fixture
def demo(tmp_path):
    """A server with two front ends and the demonstration model."""
    with ready(tmp_path / "log", MODEL_ID="demo", WORKERS="2", API_KEYS="sk-workers") as server:
        yield server
        assert "Traceback" not in server.log()


def test_sighup_fails_no_request(tmp_path, scripted):
    """Every process is replaced: each request gets its whole answer at the first attempt, each job its result, each
    live session its words or its final and 1001."""
    with ready(tmp_path / "log", WORKERS="2", **scripted) as server:
        with calling(server, recordings.sample()[1], with_jobs=True) as callers:
            callers.wait_for_each_kind(2)
            old = front_ends(server), with_jobs(server)
            server.process.send_signal(signal.SIGHUP)
            replaced(server, old[0])
            replaced(server, old[1], with_jobs)
            callers.wait_for_each_kind(2)
        assert callers.tally.wrong == []
        assert callers.tally.broken == []
        assert "Traceback" not in server.log()


def test_sighup_moves_live_sessions(demo):
    """No word is lost or doubled, and no committed word taken back; no session was cut off."""
    speakers = [Speaker(demo) for _ in range(SPEAKERS)]
    try:
        old = front_ends(demo)
        demo.process.send_signal(signal.SIGHUP)
        replaced(demo, old)
    finally:
        for speaker in speakers:
            speaker.end()
    check(speakers)
    assert [speaker.resumed for speaker in speakers] == [0] * SPEAKERS


@pytest.mark.parametrize("find", [front_ends, with_jobs])
def test_a_process_that_does_not_move_is_replaced(tmp_path, find):
    """A signal has stopped it. The others serve on meanwhile, also where its lock would keep them waiting."""
    with ready(tmp_path / "log", MODEL_ID="demo", WORKERS="2", WORKER_HANG_S="2") as server:
        stopped, *others = find(server)
        os.kill(stopped, signal.SIGSTOP)
        replaced(server, [stopped], lambda found: [pid for pid in find(found) if pid not in others])
        assert server.transcribe(recordings.sample()[0]).json()["text"] == recordings.sample()[1]
        assert "hangs and is killed" in server.log()


def test_no_process_outlives_the_supervisor(tmp_path):
    """SIGKILL: the others end with it, and the next server removes what it left in memory."""
    settings = {"MODEL_ID": "demo", "WORKERS": "2"}
    with ready(tmp_path / "log", **settings) as server:
        pids = [*front_ends(server), *engines(server), *with_jobs(server)]
        (left,) = ledgers(server)
        kill(server.process.pid)
        for pid in pids:
            wait_until_gone(pid)
    assert left.exists()
    with ready(tmp_path / "log", **settings) as server:
        assert not left.exists()
        assert len(ledgers(server)) == 1
    assert not ledgers(server)


def test_live_sessions_go_on_where_a_process_dies(demo):
    """SIGKILL to each front end and to the engine: no word is lost or doubled, and no committed word is taken back."""
    speakers = [Speaker(demo) for _ in range(SPEAKERS)]
    try:
        for find in (front_ends, engines, front_ends):
            time.sleep(2)
            old = find(demo)
            kill(old[0])
            replaced(demo, old[:1], lambda server, find=find, left=old[1:]: [p for p in find(server) if p not in left])
    finally:
        for speaker in speakers:
            speaker.end()
    check(speakers)
    assert any(speaker.resumed for speaker in speakers)
