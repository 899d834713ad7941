"""Recordings by their URLs: a host of this machine, which the operator permits, has them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import events, refusal


class _Files(BaseHTTPRequestHandler):
    """Has the sample, a file that is larger than an upload may be, and a path that answers when it may."""

    asked, may_answer = threading.Semaphore(0), threading.Event()

    def do_GET(self):
        if self.path == "/later":
            self.asked.release()
            self.may_answer.wait()
        body = {"/a.wav?X-Amz-Signature=1": recordings.sample()[0], "/large": bytes(5 * 2**20)}.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if body is not None:
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def files():
    """The address of a server with files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Files) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def fetching(start):
    """A server that takes URLs, also of this machine by its address."""
    with start(URL_HOSTS="*,127.0.0.1", MAX_UPLOAD_MB="4") as server:
        yield server


def _sent(server, path, url, **fields):
    return server.client.post(path, files={"url": (None, url)}, data=fields)


def test_every_route_for_recordings_takes_a_url(fetching, files):
    """The answer is that of an upload: of transcriptions, subtitles, jobs and Deepgram's API."""
    url = f"{files}/a.wav?X-Amz-Signature=1"
    audio = recordings.sample()[0]
    for path in ("/v1/audio/transcriptions", "/v1/audio/subtitles"):
        by_url, sent = _sent(fetching, path, url), fetching.post(path, audio)
        assert (by_url.status_code, by_url.content) == (200, sent.content)
    text = fetching.transcribe(audio).json()["text"]
    listened = fetching.client.post("/v1/listen", json={"url": url}).json()
    assert listened["results"]["channels"][0]["alternatives"][0]["transcript"] == text
    job = _sent(fetching, "/v1/jobs", url, response_format="text")
    assert job.status_code == 202, job.text
    path = f"/v1/jobs/{job.json()['id']}"
    assert events(fetching.client.get(f"{path}/events"))[-1]["status"] == "succeeded"
    assert fetching.client.get(f"{path}/result").text.strip() == text
    assert refusal(_sent(fetching, "/v1/audio/transcriptions", f"{files}/large")) == (413, "file_too_large", "url")


def test_one_caller_has_half_of_the_places(fetching, files):
    """The other four are for other callers. A place is free again when its request has ended."""
    url = f"{files}/later"
    with ThreadPoolExecutor(4) as waiting:
        answers = [waiting.submit(_sent, fetching, "/v1/audio/transcriptions", url) for _ in range(4)]
        try:
            assert all(_Files.asked.acquire(timeout=60) for _ in range(4))
            refused = _sent(fetching, "/v1/audio/transcriptions", url)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        finally:
            _Files.may_answer.set()
        assert {refusal(answer.result())[:2] for answer in answers} == {(400, "url_failed")}
    assert _sent(fetching, "/v1/audio/transcriptions", url).status_code == 400
