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
from E2Etest.process import ready

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
def test_a_page_of_another_site_hears_what_is_said_if_it_may(speaking, page_server, tmp_path):
    """The page shows the final text of the real model. A page whose origin is not allowed names the setting."""
    with _site() as origin, speaking() as browser, ready(tmp_path / "log", ALLOWED_ORIGINS=origin) as server:
        refused = _speak(browser, origin, page_server)
        expect(refused.locator("#tentative")).to_have_text(re.compile("ALLOWED_ORIGINS"))
        expect(refused.locator("#start")).to_be_enabled()
        page = _speak(browser, origin, server)
        expect(page.locator("#finals li")).to_have_text(recordings.sample()[1])
