"""Load, unload, time limits, overload and shutdown, on servers of their own."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from asr_server_fake.script import FakeScript
from E2Etest.drive import recordings
from E2Etest.drive.process import refusal, until
from E2Etest.drive.session import act, data, finals, open_session, upto_flush


@pytest.mark.slow("waits while a model is loaded")
def test_the_first_requests_load_once_and_the_time_of_the_load_does_not_count(start, sample):
    """Eight callers all get their words."""
    with start(script=FakeScript(load_s=4.0), REQUEST_TIMEOUT="3") as server, ThreadPoolExecutor(8) as pool:
        # Silence needs no model; the process that decodes is there after it.
        assert server.transcribe(recordings.wav(np.zeros(16_000, np.int16))).status_code == 200
        began_s = time.monotonic()
        answers = list(pool.map(lambda _: server.transcribe(sample[0]), range(8)))
        assert time.monotonic() - began_s > 3.0
        assert [answer.json()["text"] for answer in answers] == [sample[1]] * 8
        assert server.log().count("state=loaded") == 1


def test_a_full_server_refuses_at_once_and_says_when(start, sample):
    """Over MAX_QUEUE_AUDIO_S: 429 with Retry-After; what was accepted is answered."""
    with start(script=FakeScript(step_s=0.02), MAX_QUEUE_AUDIO_S="8") as server, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: server.transcribe(sample[0]), range(12)))
    accepted = [answer.json()["text"] for answer in answers if answer.status_code == 200]
    assert accepted == [sample[1]] * len(accepted) != []
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {refusal(answer)[:2] for answer in refused} == {(429, "rate_limit_exceeded")}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)


def test_a_stop_answers_what_was_accepted(start, sample):
    """A request under way when the server is told to stop gets its words."""
    with start(script=FakeScript(step_s=0.1)) as server, ThreadPoolExecutor(1) as pool:
        work = pool.submit(server.transcribe, sample[0])
        server.wait_for(lambda health: health["queue"]["running"] > 0)
        server.begin_to_stop()
        assert work.result().json()["text"] == sample[1]


@pytest.mark.slow("waits until a server has ended")
def test_a_server_that_is_to_stop_accepts_work_until_load_balancers_have_noticed(start, sample, speech):
    """Unready at once; for DRAIN_DELAY_S a new request and a new live session are served, over new connections."""
    with start(DRAIN_DELAY_S="5") as server:
        server.begin_to_stop()
        until(lambda: server.client.get("/readyz", headers={"Connection": "close"}).status_code == 503)
        assert httpx.get(f"{server.base}/readyz").json()["reason"] == "draining"
        url = f"{server.base}/v1/audio/transcriptions"
        assert httpx.post(url, files={"file": sample[0]}).json()["text"] == sample[1]
        with open_session(server) as socket:
            socket.send(data(speech))
            act(socket, "flush")
            assert [text for text, *_ in finals(upto_flush(socket))] == [sample[1]]
