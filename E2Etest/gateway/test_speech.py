"""Speech through a gateway: the same answers, a worker that is not ended while it speaks, and one that dies."""

import time

import httpx
import pytest

from E2Etest.exposition import scrape, value
from E2Etest.gateway.workers import kill_worker, wait_until_gone, worker_of
from E2Etest.process import running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
URL = "/v1/audio/speech"
# More than the buffers on its way hold: so the worker speaks it while it is read.
LONG = {"input": "This is one of the sentences of a long text. " * 300, "response_format": "pcm"}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (URL, {"response_format": "mp3"}),
        (URL, {"response_format": "wav", "voice": "nova"}),
        (URL, {"stream_format": "sse"}),
        (f"{URL}/stream", {}),
        (f"{URL}/stream/pcm", {}),
        (URL, {"voice": "nobody"}),
        (URL, {"input": ""}),
    ],
)
def test_answers_are_the_same(alone, gateway, path, fields):
    """Files, streams and errors."""
    body = {"input": "Hello there. This is the second sentence.", **fields}
    first, second = (server.client.post(path, json=body) for server in (alone, gateway))
    assert (first.status_code, first.content) == (second.status_code, second.content)
    for name in ("content-type", "x-pcm-sample-rate"):
        assert first.headers.get(name) == second.headers.get(name)


def test_a_gateway_knows_what_speaks_before_there_is_a_worker(tmp_path, fake):
    """And that nothing is spoken; a silent one says why."""
    with running(tmp_path / "log", GATEWAY_MODE="true", MAX_QUEUE_SPEECH_S="99", **fake) as server:
        health = server.health()
        assert health["worker"] == "stopped"
        assert (health["speech_state"], health["speech_model"]) == ("unloaded", "espeak")
        assert health["speech_queue"] == {"texts": 0, "sentences_left": 0, "held_s": 0.0, "limit_s": 99.0}
        keys = set(health)
        assert server.client.post(URL, json={"input": "Hello."}).status_code == 200
        health = server.health()
        assert (health["speech_state"], health["worker"]) == ("loaded", "running")
        assert set(health) == keys


@pytest.mark.nightly
def test_a_worker_that_speaks_is_not_idle(tmp_path, fake):
    """However slowly it is listened to; afterwards it ends."""
    with running(tmp_path / "log", GATEWAY_MODE="true", IDLE_TIMEOUT="1", **fake) as server:
        with server.client.stream("POST", URL, json=LONG) as answer:
            parts = answer.iter_bytes()
            size = len(next(parts))
            worker = worker_of(server)
            time.sleep(4)
            assert server.health()["speech_queue"]["texts"] == 1
            size += sum(map(len, parts))
            assert worker_of(server) == worker
        assert size > 300 * 48_000
        wait_until_gone(worker)
        server.wait_for(lambda health: health["worker"] == "stopped")
        assert value(scrape(server), "asr_worker_ends_total", cause="stopped") == 1


@pytest.mark.nightly
def test_a_worker_that_dies_in_the_middle_breaks_the_connection(gateway):
    """The client cannot take the part for the whole; the log has it once, and the next text is spoken."""
    marked = len(gateway.log())
    with gateway.client.stream("POST", URL, json=LONG) as answer:
        parts = answer.iter_bytes()
        next(parts)
        kill_worker(gateway)
        with pytest.raises(httpx.RemoteProtocolError):
            list(parts)
    assert gateway.client.post(URL, json={"input": "Hello again."}).status_code == 200
    logged = gateway.log()[marked:]
    assert logged.count("outcome=worker_lost") == 1
    assert "Traceback" not in logged
