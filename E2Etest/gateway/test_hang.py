"""A worker that is there and does not move is killed, and then all is as after a crash."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from E2Etest.exposition import scrape, value
from E2Etest.gateway.workers import wait_until_gone, worker_of
from E2Etest.live.session import act, data, finals, open_session, upto_flush
from E2Etest.process import running

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(300)]


def _scripted(folder, **script):
    """The settings for a gateway whose workers run the fake engine with this script."""
    path = folder / "script.json"
    path.write_text(json.dumps(script), encoding="utf-8")
    return {"MODEL_ID": "fake", "FAKE_ENGINE_SCRIPT": str(path), "GATEWAY_MODE": "true", "IDLE_TIMEOUT": "600"}


def _ends(server):
    series = scrape(server)
    return {cause: value(series, "asr_worker_ends_total", cause=cause) for cause in ("hung", "crashed", "late")}


def test_a_stopped_worker_is_killed_and_nothing_is_lost(tmp_path, sample, speech):
    """SIGSTOP, as a deadlock in native code looks from outside: a request gets its words, a session goes on."""
    settings = {"GATEWAY_MODE": "true", "IDLE_TIMEOUT": "600", "WORKER_HANG_S": "4"}
    with running(tmp_path / "log", **settings) as server, ThreadPoolExecutor(1) as pool:
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        with open_session(server) as socket:
            socket.send(data(speech[:20_000]))
            pid = worker_of(server)
            _wait_until_seen_well(server)
            os.kill(pid, signal.SIGSTOP)
            work = pool.submit(server.transcribe, sample[0])
            socket.send(data(speech[20_000:]))
            act(socket, "flush")
            wait_until_gone(pid, wait_s=120)
            assert [text for text, *_ in finals(upto_flush(socket))] == [sample[1]]
        assert work.result().json()["text"] == sample[1]
        assert worker_of(server) not in (pid, None)
        assert _ends(server) == {"hung": 1, "crashed": 0, "late": 0}


def _wait_until_seen_well(server):
    """A worker that was never seen with its model is given the time of a load."""
    looks = server.log().count("/livez")
    server.wait_for(lambda _: server.log().count("/livez") >= looks + 2)


def test_a_worker_whose_engine_hangs_is_killed_and_the_request_answered(tmp_path, sample):
    """It says itself that it is not live, and answers all that needs no engine. The next worker has the words."""
    words = {"text": sample[1]}
    hang = {**words, "fault": "hang", "hang_s": 3600, "after_tokens": 2, "once_file": str(tmp_path / "hung")}
    settings = _scripted(tmp_path, rules=[hang, words])
    with running(tmp_path / "log", ENGINE_HANG_S="3", WORKER_HANG_S="3", **settings) as server:
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        assert _ends(server) == {"hung": 1, "crashed": 0, "late": 0}
        assert value(scrape(server), "asr_worker_starts_total") == 2


def test_a_worker_whose_accelerator_fails_ends_at_once_and_nothing_is_lost(tmp_path, sample, speech):
    """As after a crash, without the wait for a hang: the request has its words, and a live session goes on."""
    words = {"text": sample[1]}
    fatal = {"context": "go wrong", "fault": "fatal", "after_tokens": 2, "once_file": str(tmp_path / "failed")}
    settings = _scripted(tmp_path, rules=[fatal, words])
    with running(tmp_path / "log", **settings) as server, open_session(server) as socket:
        socket.send(data(speech[:20_000]))
        pid = worker_of(server)
        answer = server.transcribe(sample[0], prompt="go wrong")
        assert answer.json()["text"] == sample[1]
        assert answer.elapsed.total_seconds() < 20  # WORKER_HANG_S
        assert worker_of(server) not in (pid, None)
        socket.send(data(speech[20_000:]))
        act(socket, "flush")
        assert [text for text, *_ in finals(upto_flush(socket))] == [sample[1]]
        assert _ends(server) == {"hung": 0, "crashed": 1, "late": 0}
        assert "the engine has failed" in server.log()


def test_a_server_whose_accelerator_fails_answers_and_ends_for_its_supervisor(tmp_path, sample):
    """The request gets the code, and the process ends by itself, not with 0."""
    settings = _scripted(tmp_path, rules=[{"fault": "fatal"}]) | {"GATEWAY_MODE": "false"}
    with running(tmp_path / "log", **settings) as server:
        answer = server.transcribe(sample[0])
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_failed")
        assert server.process.wait(timeout=30) == 70


def test_a_worker_that_loads_is_not_killed_however_still_it_stands(tmp_path, sample):
    """For many times the bound none of its threads moves, since importing native libraries can do that."""
    settings = _scripted(tmp_path, load_freeze_s=8, rules=[{"text": sample[1]}])
    with running(tmp_path / "log", WORKER_HANG_S="1", **settings) as server:
        assert server.client.get("/openapi.json").status_code == 200
        pid = worker_of(server)
        answer = server.transcribe(sample[0])
        assert answer.json()["text"] == sample[1]
        assert answer.elapsed.total_seconds() > 8
        assert worker_of(server) == pid
        assert _ends(server) == {"hung": 0, "crashed": 0, "late": 0}
