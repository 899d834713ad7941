"""The worker comes when needed and goes when idle; a stop ends everything in order."""

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from websockets.exceptions import ConnectionClosed

from E2Etest import recordings
from E2Etest.gateway.workers import wait_until_gone, worker_of
from E2Etest.live.session import act, data, open_session, receive, upto_flush
from E2Etest.process import ServerProcess, running
from E2Etest.realtime import session as realtime

pytestmark = pytest.mark.integration


@pytest.mark.nightly
@pytest.mark.performance
@pytest.mark.guarantee("idle-memory")
@pytest.mark.timeout(300)
def test_an_idle_worker_gives_all_its_memory_back_and_comes_again(tmp_path, sample, measured, note):
    """Health, probes and models do not wake it; under 80 MB are left; the next request is answered."""
    with running(tmp_path / "log", GATEWAY_MODE="true", IDLE_TIMEOUT="1") as server:
        asleep = server.health()
        assert (asleep["mode"], asleep["worker"], asleep["model_loaded"]) == ("gateway", "stopped", False)
        assert [server.client.get(path).status_code for path in ("/livez", "/readyz", "/v1/models")] == [200] * 3
        assert worker_of(server) is None
        fresh_mb = server.resident_mb()
        for _ in range(2):
            answer = server.transcribe(sample[0])
            assert answer.json()["text"] == sample[1]
            pid, loaded_mb = worker_of(server), server.resident_mb()
            assert server.health()["model_loaded"] is True
            after = server.wait_for(lambda health: health["worker"] == "stopped", timeout_s=60)
            wait_until_gone(pid)
            assert set(after) == set(asleep)
            assert after["status"] == "ok"
            measured("gateway_mb", server.resident_mb())
        took_s = answer.elapsed.total_seconds()
        process_s, load_s = (_last(server, what) for what in ("worker ready", "state=loaded"))
    measured("wake_s", took_s - load_s)
    note(f"gateway and worker: {fresh_mb:.0f} MB at the start, {loaded_mb:.0f} MB with the model")
    note(
        f"first request after a sleep: {took_s:.1f} s, of which loading takes {load_s:.1f} s and starting the process "
        f"{process_s:.1f} s"
    )


def _last(server, what):
    """The last time in seconds that the log tells of it."""
    return float(re.findall(rf"{what} .*?took_s=([\d.]+)", server.log())[-1])


@pytest.mark.performance
@pytest.mark.guarantee("idle-memory")
def test_a_server_alone_is_small_until_its_first_request(tmp_path, measured):
    """All processes of it, after looks at its page, its state and its metrics."""
    with running(tmp_path / "log") as server:
        for path in ("/", "/health", "/livez", "/readyz", "/metrics", "/v1/models"):
            assert server.client.get(path).status_code == 200
        measured("fresh_mb", server.resident_mb())


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_what_is_open_or_under_way_keeps_the_worker(tmp_path, speech, fake_sample):
    """A silent socket for several times IDLE_TIMEOUT, and a session that waits for its client."""
    with running(tmp_path / "log", GATEWAY_MODE="true", IDLE_TIMEOUT="0.5", WS_RESUME_S="4", **fake_sample) as server:
        with open_session(server) as socket:
            pid = worker_of(server)
            time.sleep(3)
            assert worker_of(server) == pid
            socket.send(data(speech))
            act(socket, "flush")
            assert upto_flush(socket)
        time.sleep(2)
        assert worker_of(server) == pid
        server.wait_for(lambda health: health["worker"] == "stopped", timeout_s=60)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", ["/v1/realtime?intent=transcription", "/ws/transcribe"])
def test_a_client_that_leaves_while_the_worker_starts_leaves_no_session(tmp_path, path, fake_sample):
    """Its socket to the worker is closed too, as the one that waits shows."""
    with (
        running(tmp_path / "log", GATEWAY_MODE="true", WS_RESUME_S="0", **fake_sample) as server,
        ExitStack() as opened,
    ):
        asked = (
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        place = ("127.0.0.1", server.port)
        callers = [opened.enter_context(socket.create_connection(place)) for _ in range(4)]
        for caller in callers:
            caller.sendall(asked)
        server.wait_for(lambda health: health["worker"] == "starting")
        for caller in callers[1:]:
            caller.close()
        assert callers[0].recv(12) == b"HTTP/1.1 101"
        time.sleep(1)  # for those of the others that would come
        server.wait_for(lambda health: (health["live"]["sessions"], health["live"]["waiting"]) == (1, 0), timeout_s=10)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_preload_starts_the_worker_before_the_first_request(tmp_path, fake_sample):
    """Ready means that the model has run."""
    with running(tmp_path / "log", GATEWAY_MODE="true", PRELOAD="true", **fake_sample) as server:
        first = server.client.get("/readyz")
        assert (first.status_code, first.json()["reason"]) == (503, "the model is being loaded")
        server.wait_for(lambda _: server.client.get("/readyz").status_code == 200, timeout_s=180)
        assert server.health()["model_loaded"]


@pytest.mark.timeout(300)
@pytest.mark.nightly
def test_sigterm_drains_through_the_gateway(tmp_path, speech, long, fake_sample):
    """A request under way gets its words, live sessions their final and 1001; both processes are gone, exit 0."""
    server = ServerProcess(tmp_path / "log", GATEWAY_MODE="true", PRELOAD="true", **fake_sample)
    try:
        server.wait_until_live()
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        words = server.transcribe(long).json()["text"]
        pid, ends, ready = worker_of(server), {}, threading.Barrier(4)

        def speak(number):
            with open_session(server) as socket:
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


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_sigterm_gives_a_realtime_session_its_transcripts_through_the_gateway(tmp_path, fake_sample):
    """Of the committed turn and of the open one; then 1001 with the reason."""
    server = ServerProcess(tmp_path / "log", GATEWAY_MODE="true", PRELOAD="true", **fake_sample)
    try:
        server.wait_until_live()
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        with realtime.open_session(server) as talk:
            talk.update(turn_detection=None)
            talk.say(realtime.speech())
            talk.commit()
            talk.say(realtime.speech())
            talk.until(realtime.COMMITTED)
            talk.connection.conversation.item.retrieve(item_id="none")
            talk.until("error")
            server.process.terminate()
            talk.events += list(talk.connection)
            closed = talk.connection._connection
            assert (closed.close_code, closed.close_reason) == (1001, "shutting_down")
    finally:
        assert server.stop() == 0
    committed = [event.item_id for event in talk.events if event.type == realtime.COMMITTED]
    completed = {event.item_id: event.transcript for event in talk.events if event.type == realtime.COMPLETED}
    assert (len(committed), list(completed)) == (2, committed)
    assert all(completed.values())


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_sigterm_with_a_sleeping_worker_is_done_at_once(tmp_path, fake_sample):
    """There is nothing to wait for."""
    server = ServerProcess(tmp_path / "log", GATEWAY_MODE="true", **fake_sample)
    server.wait_until_live()
    assert server.stop() == 0


@pytest.mark.timeout(120)
def test_a_wrong_setting_stops_the_gateway_in_words(tmp_path):
    """What the worker would refuse, the gateway refuses before it listens."""
    server = ServerProcess(tmp_path / "log", GATEWAY_MODE="true", USE_VLLM="true")
    assert server.process.wait(timeout=60) == 2
    assert "USE_VLLM: there is no command" in server.log()
    assert "Traceback" not in server.log()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_broken_model_is_reported_as_without_a_gateway(tmp_path):
    """It does not end the worker."""
    with running(tmp_path / "log", GATEWAY_MODE="true", MODEL_ID=str(tmp_path / "none")) as server:
        answer = server.transcribe(recordings.sample()[0], model="whisper-1")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
        health = server.health()
        assert (health["status"], health["worker"]) == ("degraded", "running")
