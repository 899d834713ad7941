"""Speech under faults, time limits, overload, slow clients and shutdown, on servers of their own."""

import http.client
import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import httpx
import pytest

from asr_server.core.audio import SPEECH_RATE
from asr_server_fake.script import FakeScript, Fault, SpeechRule, SpokenScript
from E2Etest.contract.test_speech_socket import is_idle
from E2Etest.exposition import moved, scrape, total

URL = "/v1/audio/speech"
# Each sentence of the scripted engine is 50 ms a character, in blocks of 200 ms.
SENTENCE = "This is one of the sentences of a long text. "
LONG = SENTENCE * 400
SHORT = "Hello there."


def scripted(*rules, **fields):
    """The options of a server whose speech engine follows these rules."""
    return {"scripted_speech": True, "script": FakeScript(speech=SpokenScript(rules, **fields))}


def speak(server, text=SHORT, **fields):
    """The whole answer."""
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


def code_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


def exists(pid):
    return os.path.exists(f"/proc/{pid}")


def lines(server, text):
    return [line for line in server.log().splitlines() if text in line]


@pytest.fixture(scope="module")
def failing(start):
    """Sentences with BAD fail at once, those with LATE after two blocks."""
    rules = (SpeechRule(text="BAD", fault=Fault.RAISE), SpeechRule(text="LATE", fault=Fault.RAISE, after_blocks=2))
    with start(**scripted(*rules)) as server:
        yield server


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
        assert code_of(refused) == (429, "rate_limit_exceeded")
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
        server.wait_for(lambda _: is_idle(server) and len(lines(server, "outcome=request_cancelled")) == 2)
        grew = moved(before, scrape(server))
        assert grew("asr_speech_answers_total", end="left") == 2
        assert grew("asr_speech_answers_total", end="done") == 0
        assert grew("asr_speech_sentences_total", end="left") > 0
        assert "Traceback" not in server.log()


@pytest.mark.slow("fills the buffers of a socket")
def test_a_client_that_does_not_read_holds_little_and_stops_nobody(start):
    """The engine stops ahead of it after a bounded number of bytes; when it leaves, all is free."""
    with start(**scripted(), MAX_SPEECH_CHARS="100000") as server:
        assert speak(server).status_code == 200
        body = json.dumps({"input": SENTENCE * 2_000, "response_format": "pcm"}).encode()  # 4,500 s, 216 MB
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", server.port))
            head = f"POST {URL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            stalled.sendall(head.encode() + body)
            assert stalled.recv(1)
            made_bytes, before = 0, -1
            # What waits for the reader does not keep others out.
            while made_bytes != before or server.speech.admission.held_s > 60:
                before = made_bytes
                time.sleep(0.5)
                made_bytes = int(total(scrape(server), "asr_speech_audio_seconds_total") * SPEECH_RATE * 2)
            # Three sentences ahead, 16 events of at most 64 KiB, and the buffers of the kernel.
            assert made_bytes < 8 * 2**20
            assert server.speech.texts == 1
            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(lambda n: speak(server, f"{SHORT} Number {n}."), range(8)))
            assert {answer.status_code for answer in answers} == {200}
        server.wait_for(lambda _: is_idle(server))


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


@pytest.fixture(scope="module")
def espeak(start):
    """A server with eSpeak NG loaded."""
    with start() as server:
        assert speak(server).status_code == 200
        yield server


def pid_of(server, process):
    return server.speech.encoder.pid if process == "encoder" else server.speech_pid


def test_callers_at_once_get_what_each_gets_alone(espeak):
    """Requests with different voices, texts and formats run beside each other, four times."""
    other = {"text": "Something else. And another thing.", "voice": "onyx", "response_format": "flac"}
    wanted = [{"voice": "nova", "response_format": "mp3"}, other]
    alone = [speak(espeak, **fields).content for fields in wanted]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda fields: speak(espeak, **fields).content, 4 * wanted)) == 4 * alone


@pytest.mark.parametrize(("process", "code"), [("encoder", "encoder_unavailable"), ("engine", "speech_failed")])
def test_a_killed_process_before_the_first_audio_is_a_503(espeak, process, code):
    """The next text has another process."""
    pid = pid_of(espeak, process)
    os.kill(pid, signal.SIGSTOP)  # so that the text is in the middle of its work
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(speak, espeak)
        at_work = espeak.speech.engines.named[0].thread.snapshot
        espeak.wait_for(lambda _: espeak.speech.encoder.streams and (process == "encoder" or at_work().running))
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        assert code_of(work.result()) == (503, code)
    assert speak(espeak).status_code == 200
    assert pid_of(espeak, process) != pid
    espeak.wait_for(lambda _: is_idle(espeak))
