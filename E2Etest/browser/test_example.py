"""docs/examples/browser: a page of another site, allowed to call or not."""

import functools
import http.server
import re
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from E2Etest import recordings
from E2Etest.process import running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "browser"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing."""


@contextmanager
def _site():
    """The example as its head says to serve it; its origin."""
    handler = functools.partial(_Quiet, directory=FOLDER)
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
def test_a_page_that_is_allowed_shows_what_is_said(speaking, tmp_path):
    """The final text of the real model, over an origin of its own."""
    with _site() as origin, running(tmp_path / "log", PRELOAD="true", ALLOWED_ORIGINS=origin) as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        with speaking() as browser:
            page = _speak(browser, origin, server)
            expect(page.locator("#finals li")).to_have_text(recordings.sample()[1])


@pytest.mark.nightly
def test_when_the_server_ends_the_page_is_quiet(start, speaking):
    """Nothing is sent into a closed socket, which browsers complain of for every piece."""
    said = []
    with _site() as origin, start(ALLOWED_ORIGINS=origin) as server, speaking() as browser:
        page = _speak(browser, origin, server)
        server.wait_for(lambda health: health["live"]["sessions"] == 1)
        server.stop()
        expect(page.locator("#tentative")).to_have_text(re.compile("Closed"))
        page.wait_for_timeout(200)
        page.on("console", lambda message: said.append(message.text))
        page.wait_for_timeout(500)
    assert said == []


@pytest.mark.nightly
def test_a_page_that_is_not_allowed_is_told_so(speaking, page_server):
    """The socket never opens; the page names the setting."""
    with _site() as origin, speaking() as browser:
        page = _speak(browser, origin, page_server)
        expect(page.locator("#tentative")).to_have_text(re.compile("ALLOWED_ORIGINS"))
        expect(page.locator("#start")).to_be_enabled()


@pytest.mark.nightly
def test_a_refused_microphone_is_reported(launch, page_server):
    """In the browser's words, and the page can be started again."""
    with _site() as origin, launch("--use-fake-device-for-media-stream") as browser:
        page = _speak(browser, origin, page_server)
        expect(page.locator("#tentative")).to_have_text(re.compile("No microphone: "))
        expect(page.locator("#start")).to_be_enabled()
