"""The worker comes when needed and goes when idle; a stop ends everything in order."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.exceptions import ConnectionClosed

from E2Etest import recordings
from E2Etest.gateway.workers import wait_until_gone, worker_of
from E2Etest.live.talking import act, data, receive, talking, upto_flush
from E2Etest.process import ServerProcess, running

pytestmark = pytest.mark.integration


@pytest.mark.timeout(300)
def test_an_idle_worker_gives_all_its_memory_back_and_comes_again(tmp_path, sample):
    """Health, probes and models do not wake it; under 80 MB are left; the next request is answered."""
    with running(tmp_path / "log", GATEWAY_MODE="true", IDLE_TIMEOUT="1") as server:
        asleep = server.health()
        assert (asleep["mode"], asleep["worker"], asleep["model_loaded"]) == ("gateway", "stopped", False)
        assert [server.client.get(path).status_code for path in ("/livez", "/readyz", "/v1/models")] == [200] * 3
        assert worker_of(server) is None
        for _ in range(2):
            assert server.transcribe(sample[0]).json()["text"] == sample[1]
            pid = worker_of(server)
            assert server.health()["model_loaded"] is True
            after = server.wait_for(lambda health: health["worker"] == "stopped", timeout_s=60)
            wait_until_gone(pid)
            assert set(after) == set(asleep)
            assert after["status"] == "ok"
            assert server.resident_mb() < 80


@pytest.mark.timeout(300)
def test_what_is_open_or_under_way_keeps_the_worker(tmp_path, speech):
    """A silent socket for several times IDLE_TIMEOUT, and a session that waits for its client."""
    with running(tmp_path / "log", GATEWAY_MODE="true", IDLE_TIMEOUT="0.5", WS_RESUME_S="4") as server:
        with talking(server) as socket:
            pid = worker_of(server)
            time.sleep(3)
            assert worker_of(server) == pid
            socket.send(data(speech))
            act(socket, "flush")
            assert upto_flush(socket)
        time.sleep(2)
        assert worker_of(server) == pid
        server.wait_for(lambda health: health["worker"] == "stopped", timeout_s=60)


@pytest.mark.timeout(300)
def test_preload_starts_the_worker_before_the_first_request(tmp_path):
    """Ready means that the model has run."""
    with running(tmp_path / "log", GATEWAY_MODE="true", PRELOAD="true") as server:
        first = server.client.get("/readyz")
        assert (first.status_code, first.json()["reason"]) == (503, "the model is being loaded")
        server.wait_for(lambda _: server.client.get("/readyz").status_code == 200, timeout_s=180)
        assert server.health()["model_loaded"]


@pytest.mark.timeout(300)
def test_sigterm_drains_through_the_gateway(tmp_path, speech, long):
    """A request under way gets its words, live sessions their final and 1001; both processes are gone, exit 0."""
    server = ServerProcess(tmp_path / "log", GATEWAY_MODE="true", PRELOAD="true")
    try:
        server.wait_until_live()
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        words = server.transcribe(long).json()["text"]
        pid, ends, ready = worker_of(server), {}, threading.Barrier(4)

        def speak(number):
            with talking(server) as socket:
                socket.send(data(speech[:40_000]))
                kept = [receive(socket)]
                ready.wait()
                try:
                    while True:
                        kept.append(receive(socket))
                except ConnectionClosed as closed:
                    ends[number] = (kept[-1], closed.rcvd.code)

        threads = [threading.Thread(target=speak, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        ready.wait()
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(server.transcribe, long)
            server.wait_for(lambda health: health["queue"]["audio_held_s"] > 0)
            server.process.terminate()
            assert work.result().json()["text"] == words
        for thread in threads:
            thread.join()
    finally:
        assert server.stop() == 0
    assert len(ends) == 3
    for final, code in ends.values():
        assert (final["is_final"], final["ending"], final["end"], code) == (True, "close", 2.5, 1001)
    wait_until_gone(pid)


@pytest.mark.timeout(120)
def test_sigterm_with_a_sleeping_worker_is_done_at_once(tmp_path):
    """There is nothing to wait for."""
    server = ServerProcess(tmp_path / "log", GATEWAY_MODE="true")
    server.wait_until_live()
    assert server.stop() == 0


@pytest.mark.timeout(120)
def test_a_wrong_setting_stops_the_gateway_in_words(tmp_path):
    """What the worker would refuse, the gateway refuses before it listens."""
    server = ServerProcess(tmp_path / "log", GATEWAY_MODE="true", USE_VLLM="true")
    assert server.process.wait(timeout=60) == 2
    assert "USE_VLLM is not available" in server.log()
    assert "Traceback" not in server.log()


@pytest.mark.timeout(300)
def test_a_broken_model_is_told_as_without_a_gateway(tmp_path):
    """It does not end the worker."""
    with running(tmp_path / "log", GATEWAY_MODE="true", MODEL_ID=str(tmp_path / "none")) as server:
        answer = server.transcribe(recordings.sample()[0], model="whisper-1")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
        health = server.health()
        assert (health["status"], health["worker"]) == ("degraded", "running")
