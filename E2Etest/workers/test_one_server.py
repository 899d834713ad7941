"""Callers cannot tell several processes at one port from one: limits, jobs, live sessions and figures are common."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from asr_server.net import websocket_io
from E2Etest import recordings
from E2Etest.exposition import scrape, total
from E2Etest.live.session import act, data, open_session, pieces, receive, upto_flush
from E2Etest.process import fake_model, ready
from E2Etest.workers.processes import engines, front_ends, kill, replaced, with_jobs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# A new connection goes to either process. With so many both have some: else once in 2,000 runs.
BOTH = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Two front ends on the demonstration model; one caller may have three requests under way."""
    folder = tmp_path_factory.mktemp("workers")
    settings = {"WORKERS": "2", "API_KEYS": "sk-workers", "KEY_MAX_REQUESTS": "3", "WS_RESUME_S": "60"}
    with ready(folder / "log", **settings) as found:
        yield found
        assert "Traceback" not in found.log()


def _anew(server, path, **options):
    """Ask over a connection of its own."""
    with httpx.Client(base_url=server.base, headers=server.client.headers, timeout=60) as client:
        return client.request(options.pop("method", "GET"), path, **options)


def _post(server, path="/v1/audio/transcriptions"):
    audio = recordings.sample()[0]
    return _anew(server, path, method="POST", files={"file": ("a.wav", audio)}, data={"model": "whisper-1"})


def test_either_process_has_the_words_and_their_figures_add_up(server):
    """The recordings are counted once each, whichever process had them and whichever is asked."""
    name = "asr_http_requests_total"
    asked = {"route": "/v1/audio/transcriptions"}
    before = total(scrape(server), name, **asked)
    texts = {_post(server).json()["text"] for _ in range(BOTH)}
    assert texts == {recordings.sample()[1]}

    def counted():
        return total(scrape(server), name, **asked) - before

    server.wait_for(lambda _: counted() == BOTH)
    assert {total(scrape(_Anew(server)), name, **asked) for _ in range(BOTH)} == {before + BOTH}


class _Anew:
    """A server to which each request is a connection of its own."""

    def __init__(self, server):
        self.client = self
        self.get = lambda path: _anew(server, path)


def test_a_caller_has_its_limit_once(server):
    """Sessions at one process take places at the other: the fourth request is refused, whoever gets it."""
    with open_session(server) as one, open_session(server) as two, open_session(server) as three:
        assert {_anew(server, "/v1/models").status_code for _ in range(BOTH)} == {429}
        server.wait_for(lambda _: {_anew(server, "/health").json()["live"]["sessions"] for _ in range(BOTH)} == {3})
        for socket in (one, two, three):
            socket.close(websocket_io.DISCARD)
    server.wait_for(lambda health: not health["live"]["sessions"])
    assert {_anew(server, "/v1/models").status_code for _ in range(BOTH)} == {200}


def test_a_job_is_found_from_either_process(server):
    """Its store belongs to one process, to which the others pass on what is asked."""
    job = _post(server, "/v1/jobs").json()["id"]
    server.wait_for(lambda _: _anew(server, f"/v1/jobs/{job}").json()["status"] == "succeeded")
    results = {_anew(server, f"/v1/jobs/{job}/result").json()["text"] for _ in range(BOTH)}
    assert results == {recordings.sample()[1]}
    assert _anew(server, f"/v1/jobs/{job}", method="DELETE").status_code == 200
    assert {_anew(server, f"/v1/jobs/{job}").status_code for _ in range(BOTH)} == {404}


def test_a_text_that_is_a_job_is_found_from_either_process(server):
    """Jobs of texts have the same store as those of recordings."""
    body = {"model": "tts-1", "input": "A text.", "response_format": "wav"}
    jobs = [_anew(server, "/v1/audio/speech/jobs", method="POST", json=body) for _ in range(3)]
    assert {job.status_code for job in jobs} == {202}
    for job in jobs:
        path = f"/v1/jobs/{job.json()['id']}"
        server.wait_for(lambda _, path=path: _anew(server, path).json()["status"] == "succeeded")
        assert {_anew(server, f"{path}/result").content[:4] for _ in range(BOTH)} == {b"RIFF"}


@pytest.mark.websocket
def test_a_session_is_resumed_from_either_process(server, speech):
    """Its client breaks off and comes back again and again, over new connections, in the middle of words."""
    body = data(speech)
    parts = pieces(body, len(body) // BOTH + 2 & ~1)
    session, messages, sent = "", [], 0
    for number, part in enumerate(parts):
        with open_session(server, **({"session_id": session} if session else {})) as socket:
            session = socket.hello["session_id"]
            assert number == 0 or socket.hello["received_bytes"] == sent
            socket.send(part)
            sent += len(part)
            if number == len(parts) - 1:
                act(socket, "flush")
                messages = upto_flush(socket)
            else:
                act(socket, "ping")  # so that the part has arrived
                while receive(socket).get("status") != "pong":
                    pass
                socket.socket.close()  # without a goodbye, as a train enters a tunnel
    assert " ".join(m["text"] for m in messages if m["is_final"] and m["text"]) == recordings.sample()[1]


@pytest.mark.parametrize("find", [front_ends, engines, with_jobs])
def test_a_process_that_is_killed_is_there_again(server, find):
    """SIGKILL: the others serve on, its counters stay, and the callers that come then wait for it or go to others."""
    name, route = "asr_http_requests_total", {"route": "/v1/audio/voices"}  # asked for by nobody else
    asked = total(scrape(server), name, **route) + BOTH
    for _ in range(BOTH):
        _anew(server, "/v1/audio/voices")
    server.wait_for(lambda _: total(scrape(server), name, **route) == asked)
    old = find(server)
    kill(old[0])
    with ThreadPoolExecutor(BOTH) as pool:
        answers = list(pool.map(lambda _: _quietly(server), range(BOTH)))
    replaced(server, old[:1], lambda found: [pid for pid in find(found) if pid not in old[1:]])
    assert {text for text in answers if text is not None} == {recordings.sample()[1]}
    job = _post(server, "/v1/jobs")
    assert job.status_code == 202, job.text
    assert _post(server).json()["text"] == recordings.sample()[1]
    assert total(scrape(server), name, **route) == asked


def _quietly(server):
    """Return the words; None where the process died over the request, or the caller has too many."""
    try:
        answer = _post(server)
    except httpx.TransportError:
        return None
    return answer.json().get("text")


def test_the_whole_server_ends_in_order(tmp_path):
    """SIGTERM: what is under way at any process is answered, and no process is left."""
    script = fake_model(tmp_path, text="word " * 60)
    # What is on its way when the signal comes is still accepted.
    with ready(tmp_path / "log", WORKERS="2", DRAIN_DELAY_S="1", **script) as server:
        pids = [*front_ends(server), *engines(server), *with_jobs(server)]
        assert len(pids) == 4
        answers = []
        asking = [threading.Thread(target=lambda: answers.append(_post(server).status_code)) for _ in range(BOTH)]
        for thread in asking:
            thread.start()
        server.wait_for(lambda health: health["queue"]["audio_held_s"] > 0)
        assert server.stop() == 0
        for thread in asking:
            thread.join()
        assert set(answers) == {200}
        assert [pid for pid in pids if _runs(pid)] == []


def _runs(pid):
    from E2Etest.gateway.workers import command_of

    return bool(command_of(pid))
