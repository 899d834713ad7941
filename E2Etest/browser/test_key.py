"""A server with keys: the page opens without one, says what it needs, and works with it."""

import re

import pytest
from playwright.sync_api import expect

from E2Etest import recordings
from E2Etest.browser.conftest import opened

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_a_key_is_tried_before_it_is_kept(browser, guarded):
    """With a wrong one the dialog stays and says so."""
    with opened(browser, guarded.base) as watched:
        watched.allowed += ["401"]
        page = watched.page
        _enter(page, "sk-wrong")
        expect(page.locator("#key-problem")).to_have_text(re.compile("key is missing or wrong"))
        expect(page.locator("#server-word")).to_have_text("Key needed")
        page.fill("#key-field", guarded.key)
        page.keyboard.press("Enter")
        expect(page.locator("#settings")).to_be_hidden()
        expect(page.locator(".toast")).to_have_text("Key saved for this tab")
        expect(page.locator("#server-word")).to_have_text("Ready")


@pytest.mark.nightly
def test_without_a_right_key_the_page_says_so_and_with_it_it_hears(speaking, guarded):
    """The words under the notice name the way out; the microphone is let go until then."""
    _, words = recordings.sample()
    with speaking() as browser, opened(browser, guarded.base) as watched:
        watched.allowed += ["401", "WebSocket connection"]
        page = watched.page
        page.click("#live-start")
        expect(page.locator("#live-notice")).to_have_text(re.compile("key is missing or wrong.*Settings"))
        expect(page.locator("#live-start")).to_have_text("Start")
        expect(page.locator("#server-word")).to_have_text("Key needed")
        _enter(page, guarded.key)
        expect(page.locator("#live-notice")).to_be_hidden()
        page.click("#live-start")
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text(words)
        page.click("#live-start")


@pytest.mark.nightly
def test_files_and_the_state_need_the_key_too(browser, guarded, tmp_path):
    """Told beside the file; with the key, a new try succeeds, and the limits of the server are shown."""
    recording, words = recordings.sample()
    path = tmp_path / "hello.wav"
    path.write_bytes(recording)
    with opened(browser, guarded.base, "files") as watched:
        watched.allowed += ["401"]
        page = watched.page
        page.set_input_files("#files-input", path)
        expect(page.locator("#files-queue li")).to_have_text(re.compile("key is missing or wrong"))
        expect(page.locator("#server-word")).to_have_text("Key needed")
        _enter(page, guarded.key)
        expect(page.locator("#server-word")).not_to_have_text("Key needed")
        expect(page.locator("#files-limits")).to_contain_text("MB")
        page.get_by_role("button", name="Transcribe hello.wav again", exact=True).click()
        expect(page.locator("#files-queue li")).to_contain_text("Finished")
        page.locator("#files-queue").get_by_role("link").click()
        expect(page.locator("#reader-rows")).to_contain_text(words)


@pytest.mark.nightly
def test_a_key_is_taken_as_it_was_meant_also_where_nothing_may_be_kept(browser, guarded):
    """Copied with an invisible character, in a browser that allows a page no storage."""
    with opened(browser, guarded.base, "files") as watched:
        watched.allowed += ["401"]
        page = watched.page
        denied = "get() { throw new DOMException('denied', 'SecurityError'); }"
        page.add_init_script(f"Object.defineProperty(window, 'sessionStorage', {{ {denied} }})")
        page.reload()
        expect(page.locator("#server-word")).to_have_text("Key needed")
        _enter(page, f" \u200b{guarded.key}\ufeff")
        expect(page.locator("#files-limits")).to_contain_text("MB")


def _enter(page, key):
    page.click("#settings-open")
    page.fill("#key-field", key)
    page.keyboard.press("Enter")


@pytest.mark.nightly
def test_the_page_of_the_api_asks_for_the_key_and_calls_with_it(browser, guarded):
    """A wrong key is told; with a right one the operations are shown, and a call from there is answered."""
    with opened(browser, guarded.base) as watched:
        watched.allowed += ["401"]
        page = watched.page
        page.goto(f"{guarded.base}/docs")
        page.fill("#key-field", "sk-wrong")
        page.click("#key-form button")
        expect(page.locator("#key-wrong")).to_be_visible()
        page.fill("#key-field", guarded.key)
        page.click("#key-form button")
        page.locator(".opblock-summary", has_text="/v1/models").first.click()
        page.get_by_role("button", name="Try it out").first.click()
        page.get_by_role("button", name="Execute").first.click()
        expect(page.locator(".live-responses-table .response").first).to_contain_text("200")
