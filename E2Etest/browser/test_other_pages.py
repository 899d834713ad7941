"""Pages that are not the server's: the report of `asr-server evaluate`, and the example of docs/examples/browser."""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from asr_server import demo
from asr_server.cli.evaluate.references import Reference, SystemAnswer
from asr_server.cli.evaluate.results import page as evaluation_page
from asr_server.cli.evaluate.results import results
from asr_server.cli.recording_files import RecordingSource
from E2Etest.browser.person import shows, until
from E2Etest.drive import recordings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

EVIL = '"><img src=x onerror="document.title=1"><script>document.title = 1</script>'
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "browser"


def _report(folder):
    """The page about two recordings and one that is not there."""
    (folder / "talks").mkdir()
    shutil.copy(demo.sample().recording, folder / "talks" / "a #1.wav")
    (folder / "talks" / "b.wav").write_bytes(recordings.wav(np.tile(recordings.samples(), 4)))
    answers = []
    for name, start_s in (("a #1.wav", 1.5), ("b.wav", 6.0), ("gone.wav", 1.0)):
        source = RecordingSource(folder / "talks" / name, Path(name))
        words = tuple((word, start_s, start_s + 1) for word in EVIL.split())
        answers.append((Reference(source, f"said {name}", "", EVIL), SystemAnswer(EVIL, "", 2, words)))
    found = results({"server": "http://a", "model": EVIL}, answers, {}, normalise=False, other=None)
    path = folder / "errors.html"
    path.write_bytes(evaluation_page(found, folder))
    return path.as_uri()


@pytest.mark.slow("opens a page in a browser")
def test_a_click_on_an_error_plays_its_recording_from_there(browser, tmp_path):
    """Half a second before the error, in one player for all recordings; texts of the recordings are no markup."""
    player = "document.getElementById('player')"
    with browser.new_context() as context:
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(_report(tmp_path))
        for name, before_s in (("a #1.wav", 1.0), ("b.wav", 5.5)):
            page.locator("section", has_text=name).get_by_role("button").first.click()
            until(page, f"before => {player}.currentTime >= before && {player}.played.length > 0", before_s)
            assert page.evaluate(f"{player}.played.start(0)") == pytest.approx(before_s, abs=0.1)
            shows(page, "#playing", name)
        page.locator("section", has_text="gone.wav").get_by_role("button").first.click()
        shows(page, "#playing", like="not found")
        assert page.title() == f"Word errors: http://a, model {EVIL}"
        assert page.locator("section", has_text=EVIL).count() == 3
        assert page.get_by_role("cell", name="all").count() == 1
        assert page.locator("img").count() == 0
    assert [line for line in said if "gone.wav" not in line and "ERR_FILE_NOT_FOUND" not in line] == []


@pytest.mark.nightly
def test_a_page_of_another_site_hears_what_is_said_if_it_may(speaking, page_server, start):
    """The page shows the final text. A page whose origin is not allowed names the setting."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=EXAMPLE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        try:
            origin = f"http://localhost:{site.server_port}"
            with start(ALLOWED_ORIGINS=origin) as server, speaking.new_page() as page:
                page.goto(f"{origin}/?server={page_server.base}")
                page.click("#start")
                shows(page, "#tentative", like="ALLOWED_ORIGINS")
                expect(page.locator("#start")).to_be_enabled()
                page.goto(f"{origin}/?server={server.base}")
                page.click("#start")
                shows(page, "#finals li", recordings.sample()[1])
        finally:
            site.shutdown()
