"""`kill -9` to the worker at every bad moment: callers get their words, or a 503 that says to try again."""

import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from E2Etest.gateway.workers import kill_worker, wait_until_gone, worker_of
from E2Etest.process import running

pytestmark = pytest.mark.integration
URL = "/v1/audio/transcriptions"


def _renew(server):
    """A fresh worker has no model yet, so there is time to kill it."""
    server.client.get("/openapi.json")
    pid = kill_worker(server)
    server.wait_for(lambda health: health["worker"] == "running" and worker_of(server) != pid, timeout_s=60)


@pytest.mark.timeout(300)
def test_a_request_survives_the_death_of_its_worker(gateway, sample):
    """Killed while it loads or decodes: the request is sent once more, and the caller sees nothing of it."""
    with ThreadPoolExecutor(1) as pool:
        _renew(gateway)
        work = pool.submit(gateway.transcribe, sample[0])
        gateway.wait_for(lambda health: health["queue"]["audio_held_s"] > 0, timeout_s=120)
        killed = kill_worker(gateway)
        answer = work.result()
    assert (answer.status_code, answer.json()["text"]) == (200, sample[1])
    assert worker_of(gateway) != killed


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_request_whose_second_worker_dies_too_is_told_to_try_again(gateway, sample):
    """503 with a stable code and `Retry-After`; the next request is served."""
    with ThreadPoolExecutor(1) as pool:
        _renew(gateway)
        work = pool.submit(gateway.transcribe, sample[0])
        for _ in range(2):
            gateway.wait_for(lambda health: health["queue"]["audio_held_s"] > 0, timeout_s=120)
            wait_until_gone(kill_worker(gateway))
        answer = work.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "worker_lost")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert gateway.transcribe(sample[0]).json()["text"] == sample[1]


@pytest.mark.timeout(300)
def test_a_stream_that_had_begun_ends_with_an_error_event(gateway, long):
    """Whole events up to then, the error last, and an orderly end of the body."""
    form = {"model": "whisper-1"}
    with gateway.client.stream("POST", f"{URL}/stream", files={"file": ("a.wav", long)}, data=form) as answer:
        parts = answer.iter_text()
        raw = next(parts)
        kill_worker(gateway)
        raw += "".join(parts)
    events = raw.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: {") for event in events)
    assert '"code": "worker_lost"' in events[-1]
    assert "duration" in events[0]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.guarantee("crash")
@pytest.mark.timeout(900)
def test_under_load_every_request_is_answered_or_told_to_try_again(gateway, sample, measured, note):
    """Twenty kills under four callers, each of a worker that has answered: words or 503, and ready all the time."""
    stop, seen, away_s = False, [], []

    def call():
        while not stop:
            answer = gateway.transcribe(sample[0])
            if answer.status_code == 503:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
            seen.append((answer.status_code, answer.json().get("text") or answer.json()["error"]["code"]))

    def await_words():
        before = len(seen)
        while (200, sample[1]) not in seen[before:]:
            assert not any(caller.done() for caller in callers)
            time.sleep(0.02)

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(call) for _ in range(4)]
        try:
            await_words()
            known_loads = len(_loads_s(gateway))
            for _ in range(20):
                wait_until_gone(kill_worker(gateway))
                died_s = time.monotonic()
                assert gateway.client.get("/readyz").status_code == 200
                await_words()
                away_s.append(time.monotonic() - died_s)
        finally:
            stop = True
        for caller in callers:
            caller.result()
    assert set(seen) <= {(200, sample[1]), (503, "worker_lost")}
    assert gateway.transcribe(sample[0]).status_code == 200
    loads_s = _loads_s(gateway)[known_loads:]
    assert len(loads_s) >= 20
    answered, again_s, load_s = seen.count((200, sample[1])), statistics.median(away_s), statistics.median(loads_s)
    measured("recovery_s", again_s - load_s)
    note(
        f"20 kills, {len(seen)} requests: {answered} answered, {len(seen) - answered} got a 503; next transcript after "
        f"{again_s:.1f} s (median; slowest {max(away_s):.1f} s), of which loading takes {load_s:.1f} s"
    )


def _loads_s(server):
    """How long every load of the model took so far."""
    return [float(took_s) for took_s in re.findall(r"state=loaded took_s=([\d.]+)", server.log())]


@pytest.mark.nightly
@pytest.mark.guarantee("crash")
@pytest.mark.timeout(300)
def test_a_worker_that_does_not_stay_up_is_given_up_and_tried_again_later(tmp_path, sample, note, fake_sample):
    """Killed as soon as it is there, again and again: 503 with a stable code at once; after a rest it is served."""
    with running(tmp_path / "log", GATEWAY_MODE="true", **fake_sample) as server, ThreadPoolExecutor(1) as pool:
        work = pool.submit(server.client.get, "/openapi.json")
        while not work.done():
            if worker_of(server) is not None:
                kill_worker(server)
            time.sleep(0.005)
        answer = work.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "worker_unavailable")
        assert "log" in answer.json()["error"]["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        health, ready = server.health(), server.client.get("/readyz")
        assert (health["worker"], health["status"], ready.status_code) == ("failed", "degraded", 503)
        began_s = time.monotonic()
        assert server.client.get("/openapi.json").status_code == 503
        assert time.monotonic() - began_s < 5
        assert server.client.get("/livez").status_code == 200
        time.sleep(11)
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        note(f"gave up after {server.log().count('worker ended')} crashes in a row and tried again 10 s later")


@pytest.mark.timeout(120)
@pytest.mark.nightly
def test_a_worker_does_not_outlive_its_gateway(tmp_path, fake_sample):
    """`kill -9` to the gateway: the worker sees the end of its input, and leaves."""
    with running(tmp_path / "log", GATEWAY_MODE="true", **fake_sample) as server:
        assert server.client.get("/openapi.json").status_code == 200
        pid = worker_of(server)
        server.process.kill()
        wait_until_gone(pid)
