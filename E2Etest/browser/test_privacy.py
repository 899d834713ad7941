"""A key opens the page, which keeps it for the tab. The installed page works without a network."""

import re

import pytest
from playwright.sync_api import expect

from asr_server import web
from E2Etest.browser.conftest import FINALS, opened
from E2Etest.drive import recordings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

READY = "navigator.serviceWorker.ready.then(found => found.active.scriptURL)"
SHARE = """() => {
    const form = Object.assign(document.createElement("form"), { method: "POST", action: "share" });
    form.enctype = "multipart/form-data";
    form.append(Object.assign(document.createElement("input"), { type: "file", name: "recordings", id: "shared" }));
    document.body.append(form);
}"""
NO_STORAGE = """Object.defineProperty(window, 'sessionStorage', {
    get() { throw new DOMException('denied', 'SecurityError'); }
})"""


@pytest.mark.slow("speaks into a page, and opens the page of the API")
def test_a_key_is_asked_for_tried_and_kept_for_the_tab(speaking, guarded):
    """The page opens without a key, says what it needs, and does not hold the microphone until it has one."""
    with speaking() as browser, opened(browser, guarded.base) as watched:
        watched.allowed += ["401", "WebSocket connection"]
        page = watched.page
        page.click("#live-start")
        expect(page.locator("#live-notice")).to_have_text(re.compile("key is missing or wrong.*Settings"))
        expect(page.locator("#live-start")).to_have_text("Start")
        expect(page.locator("#server-word")).to_have_text("Key needed")
        _enters(page, "sk-wrong")
        expect(page.locator("#key-problem")).to_have_text(re.compile("key is missing or wrong"))
        page.fill("#key-field", guarded.key)
        page.keyboard.press("Enter")
        expect(page.locator("#settings")).to_be_hidden()
        expect(page.locator(".toast")).to_have_text("Key saved for this tab")
        expect(page.locator("#server-word")).to_have_text("Ready")
        expect(page.locator("#live-notice")).to_be_hidden()
        page.click("#live-start")
        expect(page.locator(FINALS)).to_have_text(recordings.sample()[1])
        page.click("#live-start")
        _may_not_store(browser, guarded)
        _calls_from_the_page_of_the_api(browser, page, guarded)


def _enters(page, key):
    page.click("#settings-open")
    page.fill("#key-field", key)
    page.keyboard.press("Enter")


def _may_not_store(browser, guarded):
    """The browser allows the page no storage, and the key was copied with invisible characters."""
    with opened(browser, guarded.base, "files") as watched:
        watched.allowed += ["401"]
        watched.page.add_init_script(NO_STORAGE)
        watched.page.reload()
        expect(watched.page.locator("#server-word")).to_have_text("Key needed")
        _enters(watched.page, f" \u200b{guarded.key}\ufeff")
        expect(watched.page.locator("#files-limits")).to_contain_text("MB")


def _calls_from_the_page_of_the_api(browser, page, guarded):
    """The page does not ask again for the key of the tab. It reports a wrong one."""
    with browser.new_page() as other:
        other.goto(f"{guarded.base}/docs")
        other.fill("#key-field", "sk-wrong")
        other.click("#key-form button")
        expect(other.locator("#key-wrong")).to_be_visible()
    page.goto(f"{guarded.base}/docs")
    page.locator(".opblock-summary", has_text="/v1/models").first.click()
    page.get_by_role("button", name="Try it out").first.click()
    page.get_by_role("button", name="Execute").first.click()
    expect(page.locator(".live-responses-table .response").first).to_contain_text("200")


@pytest.mark.nightly
def test_the_installed_page_opens_offline_takes_recordings_and_is_of_one_version(browser, page_server, tmp_path):
    """The service worker serves the whole page. Its address contains the version of the page."""
    path = tmp_path / "hello.wav"
    path.write_bytes(recordings.sample()[0])
    # The policy of the page allows itself no forms; the system's is none of the page's.
    with opened(browser, page_server.base, service_workers="allow", bypass_csp=True) as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        assert f"/web/{web.version()}/" in page.evaluate(READY)
        _shares_a_recording(page, path)
        _replaces_an_older_version(page, page_server)
        page.context.set_offline(True)
        page.reload()
        expect(page.locator("#server-word")).to_have_text("Unreachable")
        page.click("#tab-files")
        expect(page.locator("#files")).to_be_visible()
        assert page.evaluate("document.fonts.check('1rem \"Source Sans 3\"')")


def _shares_a_recording(page, path):
    """The system posts a form to the page's share target, once."""
    page.wait_for_function("navigator.serviceWorker.controller")
    page.evaluate(SHARE)
    page.set_input_files("#shared", path)
    page.evaluate("document.getElementById('shared').form.submit()")
    expect(page.locator("#reader-title")).to_have_text("hello")
    expect(page.locator("#reader-rows")).to_contain_text("kitchen")
    page.reload()
    expect(page.locator("#server-word")).to_have_text("Ready")
    page.click("#tab-files")
    expect(page.locator("#files-work")).to_be_hidden()


def _replaces_an_older_version(page, server):
    """Only caches that the page made itself are removed."""
    old = f"page {server.base}/web/{'0' * 16}/"
    page.evaluate("names => Promise.all(names.map(name => caches.open(name)))", [old, "of another"])
    page.evaluate("navigator.serviceWorker.getRegistration().then(found => found.unregister())")
    page.reload()
    page.evaluate(READY)
    page.wait_for_function("old => caches.has(old).then(has => !has)", arg=old)
    assert page.evaluate("caches.has('of another')")
