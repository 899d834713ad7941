"""The first request to a server whose model has to be downloaded, from a slow hub on this machine."""

import threading
import time

import pytest

from E2Etest.drive.process import running
from E2Etest.hub import PIECES, hub

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

LIMIT_S = 10


def test_the_first_request_waits_for_the_download_and_has_its_whole_time_after_it(tmp_path, sample):
    """`/health` shows the download meanwhile; the request is answered although it took longer than its limit."""
    with (
        hub(pause_s=2.4 * LIMIT_S / PIECES) as url,
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
