"""Live: what is spoken into the microphone becomes right words, also over a connection that breaks."""

import re
import signal
from contextlib import ExitStack, contextmanager

import pytest
from playwright.sync_api import expect

from E2Etest import recordings
from E2Etest.browser.conftest import opened
from E2Etest.browser.storing import kept
from E2Etest.process import running
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.websocket, pytest.mark.integration, pytest.mark.timeout(300)]


def _words(page):
    return page.locator("#live-lines li:not(.open) p").all_inner_texts()


def _end(page):
    page.click("#live-start")
    expect(page.locator("#live-start")).to_have_text("Start")


def test_one_click_from_the_page_to_own_words_which_are_kept(speaking, page_server, shots):
    """Grey words turn solid, the line that stays is what was said, and the store has it with the times of its words."""
    _, words = recordings.sample()
    with speaking() as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.click("#live-start")
        expect(page.locator("#live-lines .grey")).to_have_text(re.compile(r"\w"))
        page.screenshot(path=shots / "live.png")
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text(words)
        expect(page.locator("#live-announcer")).to_have_text(words)
        _end(page)
        assert _words(page) == [words]
        expect(page.locator("#live-open")).to_be_visible()
        (found,) = kept(page)
        assert found["state"] == "complete"
        assert " ".join(row["text"] for row in found["rows"]) == words
        timed = [word for row in found["rows"] for word in row["words"]]
        assert "".join(word["text"] for word in timed).split() == words.split()
        assert all(0 < word["start"] <= word["end"] < 8 for word in timed)


@pytest.mark.nightly
def test_a_pause_ends_the_line_and_what_is_said_meanwhile_is_not_heard(speaking, page_server):
    """Pause, nothing is recorded; continue, the clock goes on."""
    with speaking() as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.click("#live-start")
        expect(page.locator("#live-lines .grey")).to_have_text(re.compile(r"\w"))
        page.click("#live-pause")
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text(re.compile(r"^hello"))
        expect(page.locator("#live-lines li.open")).to_have_count(0)
        said = _words(page)
        at = page.inner_text("#live-time")
        page.wait_for_timeout(1500)
        assert page.inner_text("#live-time") == at
        page.click("#live-pause")
        expect(page.locator("#live-time")).not_to_have_text(at)
        _end(page)
        assert _words(page)[: len(said)] == said


@pytest.mark.nightly
def test_a_cut_connection_loses_and_doubles_no_word(speaking, page_server, shots):
    """The line breaks in the middle of a word and stays away for a while; the session is resumed."""
    _, words = recordings.sample()
    with Proxy(page_server.port) as proxy, speaking(times=2) as browser, opened(browser, proxy.base) as watched:
        watched.allowed += ["WebSocket connection", "Failed to load resource"]
        page = watched.page
        page.click("#live-start")
        expect(page.locator("#live-lines .grey")).to_have_text(re.compile(r"\w"))
        proxy.refusing = True
        proxy.cut()
        expect(page.locator("#live-connection")).to_have_text(re.compile("Connection lost"))
        page.screenshot(path=shots / "live-cut.png")
        proxy.refusing = False
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text([words, words])
        _end(page)
        assert _words(page) == [words, words]
        assert "lost" not in page.inner_text("#live-connection")


@contextmanager
def _ready(folder):
    folder.mkdir()
    with running(folder / "log", PRELOAD="true", IDLE_TIMEOUT="0") as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        yield server


@pytest.mark.nightly
def test_a_server_that_dies_and_comes_back_hears_again_what_no_line_was_made_of(speaking, tmp_path):
    """No session survives its process; the page still has the sound."""
    _, words = recordings.sample()
    with Proxy(9) as proxy, ExitStack() as stack:
        first = stack.enter_context(_ready(tmp_path / "one"))
        proxy.target = first.port
        browser = stack.enter_context(speaking(times=2))
        watched = stack.enter_context(opened(browser, proxy.base))
        watched.allowed += ["WebSocket connection", "Failed to load resource"]
        page = watched.page
        page.click("#live-start")
        expect(page.locator("#live-lines .grey")).to_have_text(re.compile(r"\w"))
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        expect(page.locator("#live-connection")).to_have_text(re.compile("Still recording"))
        proxy.target = stack.enter_context(_ready(tmp_path / "two")).port
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text([words, words])
        _end(page)
        assert _words(page) == [words, words]


_NOTICES = """
window.notices = [];
addEventListener("DOMContentLoaded", () => {
    const shown = document.querySelector("#live-connection");
    const note = () => window.notices.push(shown.textContent);
    new MutationObserver(note).observe(shown, { childList: true, characterData: true, subtree: true });
});
"""


@pytest.mark.nightly
def test_a_server_that_shuts_down_is_left_while_it_still_serves(speaking, tmp_path):
    """Another one takes its place in the middle of a sentence: the page shows no interruption, and each word once."""
    _, words = recordings.sample()
    with Proxy(9) as proxy, ExitStack() as stack:
        last, following = (stack.enter_context(_ready(tmp_path / name)) for name in ("last", "following"))
        proxy.target = last.port
        browser = stack.enter_context(speaking(times=2))
        watched = stack.enter_context(opened(browser, proxy.base))
        watched.allowed += ["WebSocket connection", "Failed to load resource"]
        page = watched.page
        page.add_init_script(_NOTICES)
        page.reload()
        page.click("#live-start")
        expect(page.locator("#live-lines li").first).to_have_text(re.compile(r"\w"))
        proxy.target = following.port
        last.process.send_signal(signal.SIGTERM)
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text([words, words])
        assert last.process.wait(timeout=60) == 0
        assert following.health()["live"]["sessions"] == 1
        assert not [notice for notice in page.evaluate("window.notices") if "lost" in notice]
        _end(page)
        assert _words(page) == [words, words]


@pytest.mark.nightly
def test_a_refused_microphone_is_reported_with_a_way_out(launch, page_server):
    """Nothing is sent, and the page can be started again."""
    with launch("--use-fake-device-for-media-stream") as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.click("#live-start")
        notice = page.locator("#live-notice")
        expect(notice).to_have_text(re.compile("Microphone access is blocked.*Allow it.*press Start.$"))
        expect(notice).to_have_attribute("role", "alert")
        expect(page.locator("#live-start")).to_have_text("Start")


@pytest.mark.nightly
def test_a_missing_microphone_is_reported(launch, page_server):
    """A machine without one is not a machine that refuses."""
    with launch("--use-fake-ui-for-media-stream") as browser, opened(browser, page_server.base) as watched:
        watched.page.click("#live-start")
        expect(watched.page.locator("#live-notice")).to_have_text(re.compile("No microphone was found"))


@pytest.mark.nightly
def test_a_page_that_is_not_safe_says_why_there_is_no_microphone(launch, page_server):
    """Over plain http from another machine browsers have no microphone at all."""
    base = f"http://asr.test:{page_server.port}"
    with launch("--host-resolver-rules=MAP asr.test 127.0.0.1") as browser, opened(browser, base) as watched:
        watched.page.click("#live-start")
        expect(watched.page.locator("#live-notice")).to_have_text(re.compile("https://.*localhost"))


@pytest.mark.nightly
def test_the_key_goes_with_the_socket_and_stays_in_the_tab(speaking, page_server):
    """As `token`, since a browser's socket has no headers; nothing outlives the tab."""
    with speaking() as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.click("#settings-open")
        page.fill("#key-field", "s3cret key")
        page.keyboard.press("Enter")
        with page.expect_websocket() as socket:
            page.click("#live-start")
        assert "token=s3cret+key" in socket.value.url
        assert page.evaluate("[Object.keys(localStorage).length, document.cookie]") == [0, ""]
        _end(page)
        page.click("#settings-open")
        page.click("#key-forget")
        assert page.evaluate("Object.keys(sessionStorage).length") == 0
