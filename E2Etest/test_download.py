"""The first request to a server whose model has to be downloaded, from a slow hub on this machine."""

import time
from concurrent.futures import ThreadPoolExecutor

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
        assert server.health()["model_on_disk"] is False
        began_s, downloaded = time.monotonic(), []
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.transcribe, sample[0])
            while not asked.done():
                downloaded.append(server.health()["downloaded_mb"])
                time.sleep(0.5)
        assert time.monotonic() - began_s > 2 * LIMIT_S
        assert asked.result().json()["text"] == sample[1]
        downloaded = [megabytes for megabytes in downloaded if megabytes]
        assert downloaded == sorted(downloaded)
        assert len(set(downloaded)) >= 3
        assert server.health()["downloaded_mb"] == 0
        # The log says at the start that the model is not there, and how far the download is.
        assert "the model is not ready reason=o/model is not on this machine yet" in server.log()
        assert "downloading the model model=o/model downloaded_mb=" in server.log()
        assert server.health()["model_on_disk"] is True
