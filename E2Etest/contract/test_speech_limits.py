"""Speech under faults, time limits, overload, slow clients and shutdown, on servers of their own."""

import http.client
import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from asr_server.features.speech_output import speech_socket
from asr_server_fake.script import FakeScript, Fault, SpeechRule, SpokenScript
from E2Etest.drive.process import refusal
from E2Etest.drive.session import connected
from E2Etest.exposition import moved, scrape, value

URL = "/v1/audio/speech"
# Each sentence of the scripted engine is 50 ms a character, in blocks of 200 ms.
SENTENCE = "This is one of the sentences of a long text. "
LONG = SENTENCE * 400
SHORT = "Hello there."


def scripted(*rules, **fields):
    """The options of a server whose speech engine follows these rules."""
    return {"scripted_speech": True, "script": FakeScript(speech=SpokenScript(rules, **fields))}


def speak(server, text=SHORT, **fields):
    return server.client.post(URL, json={"input": text, "response_format": "pcm", **fields})


@contextmanager
def speaking(server, text=LONG, **fields):
    """The parts of an answer that has begun."""
    body = {"input": text, "response_format": "pcm", **fields}
    with server.client.stream("POST", URL, json=body) as answer:
        assert answer.status_code == 200
        parts = answer.iter_bytes()
        assert next(parts)
        yield parts


def is_idle(server):
    """Return True if the engine, its queue, the encoder and the admission hold nothing of any request."""
    snapshot = server.speech.engines.named[0].thread.snapshot()
    engine = snapshot.running or any(snapshot.depth.values())
    return not (engine or server.speech.encoder.streams or server.speech.texts or server.speech.admission.held_s)


@pytest.fixture(scope="module")
def failing(start):
    """Sentences with BAD fail at once, those with LATE after two blocks."""
    rules = (SpeechRule(text="BAD", fault=Fault.RAISE), SpeechRule(text="LATE", fault=Fault.RAISE, after_blocks=2))
    with start(**scripted(*rules)) as server:
        yield server


def test_a_job_may_have_as_many_bytes_as_its_characters_and_no_more(failing):
    """A character may be a pair of escapes, and 1 MiB is for fields."""
    longest = b" " * (12 * 2_000_000 + 2**20)
    answers = [failing.client.post(f"{URL}/jobs", content=body) for body in (longest, longest + b" ")]
    assert [refusal(answer)[:2] for answer in answers] == [(400, "malformed_body"), (413, "file_too_large")]


@pytest.mark.parametrize("text", ["LATE is this one.", f"{SHORT} And then BAD."])
def test_a_failure_after_the_first_audio_breaks_the_connection(failing, text):
    """A client does not take the part for the whole. The log has the code once, and no traceback."""
    before, marked = scrape(failing), len(failing.log())
    with pytest.raises(httpx.RemoteProtocolError), speaking(failing, text) as parts:
        list(parts)
    failing.wait_for(lambda _: is_idle(failing) and "outcome=" in failing.log()[marked:])
    logged = failing.log()[marked:]
    assert "Traceback" not in logged
    assert logged.count("answer cut off") == 1
    assert logged.count("ERROR") == 1
    assert logged.count("code=speech_failed") == logged.count("outcome=speech_failed") == 1
    grew = moved(before, scrape(failing))
    assert grew("asr_errors_total", code="speech_failed") == 1
    assert grew("asr_speech_answers_total", end="failed", format="pcm") == 1
    assert speak(failing).status_code == 200


def test_a_full_server_refuses_at_once_and_says_when(start):
    """Above MAX_QUEUE_AUDIO_S it answers 429 with Retry-After. Accepted texts are spoken."""
    with start(**scripted(step_s=0.02), MAX_QUEUE_AUDIO_S="10") as server, speaking(server, SENTENCE * 10) as parts:
        health = server.health()["speech_queue"]
        assert (health["texts"], health["limit_s"]) == (1, 10.0)
        assert health["sentences_left"] > 0
        refused = speak(server, SENTENCE * 3)
        assert refusal(refused)[:2] == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        assert sum(map(len, parts)) > 0


def test_a_client_that_leaves_frees_everything(start):
    """Before the first audio and in the middle of it, of a text that would take an hour."""
    rules = (SpeechRule(text="slow", fault=Fault.HANG, hang_s=1.0),)
    with start(**scripted(*rules, step_s=0.05)) as server:
        assert speak(server).status_code == 200
        before = scrape(server)
        with speaking(server):
            assert server.speech.encoder.streams == server.speech.texts == 1
            assert not is_idle(server)
        server.wait_for(lambda _: is_idle(server))
        with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as caller:
            caller.request("POST", URL, json.dumps({"input": f"slow. {LONG}"}), {"Content-Type": "application/json"})
            server.wait_for(lambda _: server.speech.engines.named[0].thread.snapshot().running)
        server.wait_for(lambda _: is_idle(server) and server.log().count("outcome=request_cancelled") == 2)
        grew = moved(before, scrape(server))
        assert grew("asr_speech_answers_total", end="left") == 2
        assert grew("asr_speech_answers_total", end="done") == 0
        assert grew("asr_speech_sentences_total", end="left") > 0
        assert "Traceback" not in server.log()


def test_a_stop_speaks_what_was_accepted_to_its_end(start):
    """Whoever comes later is sent away."""
    with start(**scripted(step_s=0.01)) as server:
        whole = speak(server, SENTENCE * 3, pause_ms=0).content
        with speaking(server, SENTENCE * 3, pause_ms=0) as parts:
            server.begin_to_stop()
            rest = b"".join(parts)
        assert 0 < len(rest) < len(whole)
        with pytest.raises((httpx.TransportError, AssertionError)):
            assert speak(server).status_code == 200


@pytest.mark.parametrize(("process", "code"), [("encoder", "encoder_unavailable"), ("engine", "speech_failed")])
def test_a_killed_process_before_the_first_audio_is_a_503(start, process, code):
    """The next text has another process."""
    with start() as server, ThreadPoolExecutor(1) as pool:
        assert speak(server).status_code == 200
        pid = server.speech.encoder.pid if process == "encoder" else server.speech_pid
        os.kill(pid, signal.SIGSTOP)  # so that the text is in the middle of its work
        work = pool.submit(speak, server)
        at_work = server.speech.engines.named[0].thread.snapshot
        server.wait_for(lambda _: server.speech.encoder.streams and (process == "encoder" or at_work().running))
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        assert refusal(work.result())[:2] == (503, code)
        assert speak(server).status_code == 200
        server.wait_for(lambda _: is_idle(server))


@pytest.mark.websocket
def test_a_client_that_does_not_read_its_socket_is_closed(start, monkeypatch):
    """The close code says why, the error is counted, and the client's work ends."""
    monkeypatch.setattr(speech_socket, "_SEND_S", 0.5)
    with start(MAX_SPEECH_CHARS="200000") as server, socket.socket() as small:
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.connect(("127.0.0.1", server.port))
        with connected(server, "/ws/speech", sock=small, max_queue=1, ping_interval=None) as peer:
            for _ in range(20):
                peer.send(json.dumps({"type": "text", "text": SENTENCE * 40}))
            code = {"surface": "socket", "code": "slow_reader"}
            server.wait_for(lambda _: value(scrape(server), "asr_errors_total", **code) == 1 and is_idle(server))
            with suppress(ConnectionClosed):
                while True:
                    peer.recv(timeout=60)
            assert peer.close_code == 1008
