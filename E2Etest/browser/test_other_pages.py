"""Pages that are not the server's: the report of `asr-server evaluate`, and the example of docs/examples/browser."""

import functools
import http.server
import re
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from asr_server import demo
from asr_server.cli.evaluate.references import Reference, SystemAnswer
from asr_server.cli.evaluate.results import page as evaluation_page
from asr_server.cli.evaluate.results import results
from asr_server.cli.recording_files import RecordingSource
from E2Etest.browser.storing import until
from E2Etest.drive import recordings
from E2Etest.drive.process import ready

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

EVIL = '"><img src=x onerror="document.title=1"><script>document.title = 1</script>'


@pytest.fixture
def opened_page(browser, tmp_path):
    """The page about two recordings and one that is not there, and what its console says."""
    (tmp_path / "talks").mkdir()
    shutil.copy(demo.sample().recording, tmp_path / "talks" / "a #1.wav")
    long = np.tile(recordings.samples(), 4)
    (tmp_path / "talks" / "b.wav").write_bytes(recordings.wav(long))
    answers = []
    for name, start_s in (("a #1.wav", 1.5), ("b.wav", 6.0), ("gone.wav", 1.0)):
        source = RecordingSource(tmp_path / "talks" / name, Path(name))
        words = tuple((word, start_s, start_s + 1) for word in EVIL.split())
        answers.append((Reference(source, f"said {name}", "", EVIL), SystemAnswer(EVIL, "", 2, words)))
    found = results({"server": "http://a", "model": EVIL}, answers, {}, normalise=False, other=None)
    file = tmp_path / "errors.html"
    file.write_bytes(evaluation_page(found, tmp_path))
    with browser.new_context() as context:
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(file.as_uri())
        yield page, said


def test_a_click_on_an_error_plays_its_recording_from_there(opened_page):
    """Half a second before the error, in one player for all recordings; texts of the recordings are no markup."""
    page, said = opened_page
    player = "document.getElementById('player')"
    for name, before_s in (("a #1.wav", 1.0), ("b.wav", 5.5)):
        page.locator("section", has_text=name).get_by_role("button").first.click()
        until(page, f"before => {player}.currentTime >= before && {player}.played.length > 0", before_s)
        first_s = page.evaluate(f"{player}.played.start(0)")
        assert first_s == pytest.approx(before_s, abs=0.1)
        assert page.locator("#playing").inner_text() == name
    page.locator("section", has_text="gone.wav").get_by_role("button").first.click()
    until(page, "() => document.getElementById('playing').textContent.includes('not found')")
    assert page.title() == f"Word errors: http://a, model {EVIL}"
    assert page.locator("section", has_text=EVIL).count() == 3
    assert page.get_by_role("cell", name="all").count() == 1
    assert page.locator("img").count() == 0
    assert [line for line in said if "gone.wav" not in line and "ERR_FILE_NOT_FOUND" not in line] == []


FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "browser"


@contextmanager
def _site():
    """The example as its head says to serve it; its origin."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=FOLDER)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever).start()
        yield f"http://localhost:{site.server_port}"
        site.shutdown()


def _speak(browser, origin, server):
    """The page, listening."""
    page = browser.new_page()
    page.goto(f"{origin}/?server={server.base}")
    page.click("#start")
    return page


@pytest.mark.nightly
def test_a_page_of_another_site_hears_what_is_said_if_it_may(speaking, page_server, tmp_path):
    """The page shows the final text of the real model. A page whose origin is not allowed names the setting."""
    with _site() as origin, speaking() as browser, ready(tmp_path / "log", ALLOWED_ORIGINS=origin) as server:
        refused = _speak(browser, origin, page_server)
        expect(refused.locator("#tentative")).to_have_text(re.compile("ALLOWED_ORIGINS"))
        expect(refused.locator("#start")).to_be_enabled()
        page = _speak(browser, origin, server)
        expect(page.locator("#finals li")).to_have_text(recordings.sample()[1])
