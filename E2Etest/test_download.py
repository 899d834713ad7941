"""The first request to a server whose model has to be downloaded, from a slow hub on this machine."""

import hashlib
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from asr_server import demo
from E2Etest.process import running

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

COMMIT = "a" * 40
LIMIT_S = 20
# Another format of the weights, which takes three times as long as a request may. The client writes 10 MB at a time.
OTHER, OTHER_BYTES, PIECES, PAUSE_S = "pytorch_model.bin", 48_000_000, 120, 0.4


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol by which a client fetches the bundled checkpoint as `o/model`."""

    def do_HEAD(self):
        """What the client asks before it downloads a file."""
        self._send(len(self._file()))

    def do_GET(self):
        """The list of the files, or one of them."""
        if self.path.startswith("/api/models/o/model/revision/"):
            names = [OTHER, *(path.name for path in demo.checkpoint_path().iterdir())]
            body = json.dumps({"id": "o/model", "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]}).encode()
        else:
            body = self._file()
        self._send(len(body))
        size = OTHER_BYTES // PIECES
        for at in range(0, len(body), size):
            time.sleep(PAUSE_S if len(body) == OTHER_BYTES else 0)
            self.wfile.write(body[at : at + size])

    def _file(self):
        name = self.path.rpartition("/")[2]
        return bytes(OTHER_BYTES) if name == OTHER else (demo.checkpoint_path() / name).read_bytes()

    def _send(self, length):
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", f'"{hashlib.sha256(self.path.encode()).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


@contextmanager
def _hub():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_first_request_waits_for_the_download_and_has_its_whole_time_after_it(tmp_path, sample):
    """`/health` shows the download meanwhile; the request is answered although it took longer than its limit."""
    with (
        _hub() as url,
        running(
            tmp_path / "log",
            MODEL_ID="o/model",
            HF_ENDPOINT=url,
            HF_HUB_CACHE=str(tmp_path / "hub"),
            HF_HUB_OFFLINE="0",
            REQUEST_TIMEOUT=str(LIMIT_S),
        ) as server,
    ):
        seen, ended = [], threading.Event()

        def watch():
            while not ended.wait(0.5):
                seen.append(server.health())

        assert server.health()["model_on_disk"] is False
        watcher = threading.Thread(target=watch)
        watcher.start()
        began_s = time.monotonic()
        try:
            answer = server.transcribe(sample[0])
        finally:
            ended.set()
            watcher.join()
        assert time.monotonic() - began_s > 2 * LIMIT_S
        assert answer.status_code == 200, answer.text
        assert answer.json()["text"] == sample[1]
        downloaded = [health["downloaded_mb"] for health in seen if health["downloaded_mb"]]
        assert downloaded == sorted(downloaded)
        assert len(set(downloaded)) >= 3
        assert server.health()["downloaded_mb"] == 0
        # The log says at the start that the model is not there, and how far the download is.
        assert "the model is not ready reason=o/model is not on this machine yet" in server.log()
        assert "downloading the model model=o/model downloaded_mb=" in server.log()
        assert server.health()["model_on_disk"] is True
