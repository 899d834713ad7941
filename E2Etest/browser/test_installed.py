"""The installed page: it opens without its server, takes shared recordings, and never mixes two versions."""

import pytest
from playwright.sync_api import expect

from asr_server import web
from E2Etest import recordings
from E2Etest.browser.conftest import opened

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.nightly]

READY = "navigator.serviceWorker.ready.then(found => found.active.scriptURL)"
SHARE = """() => {
    const form = Object.assign(document.createElement("form"), { method: "POST", action: "share" });
    form.enctype = "multipart/form-data";
    const input = Object.assign(document.createElement("input"), { type: "file", name: "recordings", id: "shared" });
    form.append(input);
    document.body.append(form);
}"""


def test_it_opens_without_the_server(browser, page_server):
    """All of it comes from the worker, whose address has the version of the page; the server is not called ready."""
    with opened(browser, page_server.base, service_workers="allow") as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        assert f"/web/{web.version()}/" in page.evaluate(READY)
        page.context.set_offline(True)
        page.reload()
        expect(page.locator("#server-word")).to_have_text("Unreachable")
        page.click("#tab-files")
        expect(page.locator("#files")).to_be_visible()
        assert page.evaluate("document.fonts.check('1rem \"Source Sans 3\"')")


def test_a_shared_recording_is_transcribed(browser, page_server, tmp_path):
    """As the system hands it over: by a form that is posted below the page, once."""
    path = tmp_path / "hello.wav"
    path.write_bytes(recordings.sample()[0])
    # The policy of the page allows itself no forms; the system's is none of the page's.
    with opened(browser, page_server.base, service_workers="allow", bypass_csp=True) as watched:
        page = watched.page
        page.evaluate(READY)
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


def test_what_is_kept_of_an_older_version_is_removed(browser, page_server):
    """Only what the page itself has put there."""
    with opened(browser, page_server.base, service_workers="allow") as watched:
        page = watched.page
        page.evaluate(READY)
        old = f"page {page_server.base}/web/{'0' * 16}/"
        page.evaluate("names => Promise.all(names.map(name => caches.open(name)))", [old, "of another"])
        page.evaluate("navigator.serviceWorker.getRegistration().then(found => found.unregister())")
        page.reload()
        page.evaluate(READY)
        page.wait_for_function("old => caches.has(old).then(has => !has)", arg=old)
        assert page.evaluate("caches.has('of another')")
