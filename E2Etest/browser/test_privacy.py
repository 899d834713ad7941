"""A key opens the page, which keeps it for the tab. The installed page works without a network."""

import pytest
from playwright.sync_api import expect

from asr_server import web
from E2Etest.browser.person import FINALS, button, hides, opened, press, shows
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
});"""


def _enters(page, key):
    page.click("#settings-open")
    page.fill("#key-field", key)
    press(page, "Enter")


@pytest.mark.slow("speaks into a page")
def test_a_key_is_asked_for_tried_and_kept_for_the_tab(speaking, guarded, look):
    """The page opens without a key, says what it needs, and does not hold the microphone until it has one."""
    with opened(speaking, guarded.base, allowed=["401", "WebSocket connection"]) as page:
        page.click("#live-start")
        shows(page, "#live-notice", like="key is missing or wrong.*Settings")
        shows(page, "#live-start", "Start")
        shows(page, "#server-word", "Key needed")
        _enters(page, "sk-wrong")
        shows(page, "#key-problem", like="key is missing or wrong")
        look(page, "settings")
        page.fill("#key-field", guarded.key)
        press(page, "Enter")
        hides(page, "#settings")
        shows(page, ".toast", "Key saved for this tab")
        look(page, "toast")
        shows(page, "#server-word", "Ready")
        hides(page, "#live-notice")
        page.click("#live-start")
        shows(page, FINALS, recordings.sample()[1])
        page.click("#live-start")
    # The browser allows the page no storage, and the key was copied with invisible characters.
    with opened(speaking, guarded.base, "files", ["401"], script=NO_STORAGE) as page:
        shows(page, "#server-word", "Key needed")
        _enters(page, f" \u200b{guarded.key}\ufeff")
        shows(page, "#files-limits", like="MB")


@pytest.mark.nightly
def test_the_page_of_the_api_has_the_key_of_the_tab(browser, guarded):
    """In a tab without a key it asks for one, and reports a wrong one."""
    with opened(browser, guarded.base, allowed=["401"]) as page:
        page.goto(f"{guarded.base}/docs")
        page.fill("#key-field", "sk-wrong")
        page.click("#key-form button")
        shows(page, "#key-wrong")
        page.goto(f"{guarded.base}/")
        _enters(page, guarded.key)
        shows(page, "#server-word", "Ready")
        page.goto(f"{guarded.base}/docs")
        page.locator(".opblock-summary", has_text="/v1/models").first.click()
        button(page, "Try it out").click()
        button(page, "Execute").click()
        expect(page.locator(".live-responses-table .response").first).to_contain_text("200")


@pytest.mark.nightly
def test_the_installed_page_opens_offline_takes_recordings_and_is_of_one_version(browser, page_server, tmp_path):
    """The service worker serves the whole page. Its address contains the version of the page."""
    path = tmp_path / "hello.wav"
    path.write_bytes(recordings.sample()[0])
    # The policy of the page allows itself no forms; the system's is none of the page's.
    context = {"service_workers": "allow", "bypass_csp": True}
    with opened(browser, page_server.base, allowed=["Failed to load resource"], **context) as page:
        assert f"/web/{web.version()}/" in page.evaluate(READY)
        # The system posts a form to the page's share target, once.
        page.wait_for_function("navigator.serviceWorker.controller")
        page.evaluate(SHARE)
        page.set_input_files("#shared", path)
        page.evaluate("document.getElementById('shared').form.submit()")
        shows(page, "#reader-title", "hello")
        shows(page, "#reader-rows", like="kitchen")
        page.reload()
        shows(page, "#server-word", "Ready")
        page.click("#tab-files")
        hides(page, "#files-work")
        # Of older versions, only caches that the page made itself are removed.
        old = f"page {page_server.base}/web/{'0' * 16}/"
        page.evaluate("names => Promise.all(names.map(name => caches.open(name)))", [old, "of another"])
        page.evaluate("navigator.serviceWorker.getRegistration().then(found => found.unregister())")
        page.reload()
        page.evaluate(READY)
        page.wait_for_function("old => caches.has(old).then(has => !has)", arg=old)
        assert page.evaluate("caches.has('of another')")
        page.context.set_offline(True)
        page.reload()
        shows(page, "#server-word", "Unreachable")
        page.click("#tab-files")
        shows(page, "#files")
        assert page.evaluate("document.fonts.check('1rem \"Source Sans 3\"')")
