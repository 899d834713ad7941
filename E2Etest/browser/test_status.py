"""The page says how the server is, and what keeps it from working."""

import pytest
from playwright.sync_api import expect

from E2Etest.browser.looking import LOOKED
from E2Etest.browser.person import answer_health, hides, opened, shows
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STATES = (
    ({"model_on_disk": False}, "not on the server's disk", "No model yet"),
    ({"model_on_disk": False, "model_state": "loading"}, "being loaded", "Loading model"),
    ({"model_state": "loading", "downloaded_mb": 512}, "being downloaded: 512 MiB", "Loading model"),
    ({"status": "draining"}, "shutting down", "Shutting down"),
    ({"model_state": "failed", "model_error": "No network.", "status": "degraded"}, "nothing can be", "No model"),
)
HIDDEN = """() => {
    Object.defineProperty(document, "hidden", { get: () => true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.slow("waits until the page asks again for a server that was gone")
def test_status_says_how_the_server_is(browser, page_server, look):
    """The panel has a sentence, then charts. The model and the options are folded away."""
    health = page_server.health()
    allowed = ["Failed to load resource"]
    with Proxy(page_server.port) as proxy, opened(browser, proxy.base, "status", allowed) as page:
        shows(page, "#status-sentence", "Server ready, idle")
        shows(page, "#status-model", like=health["model_id"])
        expect(page.locator("#status-charts svg")).to_have_count(2)
        hides(page, "#status-facts")
        page.click("#status summary >> nth=0")
        for fact in ("in memory", health["version"], health["speech_model"]):
            expect(page.locator("#status-facts")).to_contain_text(fact)
        active = [option for option in health["plan"] if option["active"]]
        expect(page.locator("#status-plan tr")).to_have_count(len(active))
        for option in active:
            expect(page.locator("#status-plan")).to_contain_text(option["reason"])
        expect(page.locator("#status-off tr")).to_have_count(len(health["plan"]) - len(active))
        expect(page.locator("#status-off tr").first).to_be_hidden()
        page.click("#status-off-count")
        look(page, "status-details")
        proxy.refusing = True
        proxy.cut()
        shows(page, "#status-notice", like="cannot be reached")
        shows(page, "#server-word", "Unreachable")
        proxy.refusing = False
        shows(page, "#server-word", "Ready")
        hides(page, "#status-notice")


@LOOKED
@pytest.mark.nightly
def test_status_says_what_keeps_the_server_from_hearing(browser, page_server, look):
    """The page shows the reason of a failure. In the background it sends no requests, and without an answer it does not
    call the server ready."""
    health = page_server.health() | {"model_loaded": False, "model_state": "unloaded"}
    with opened(browser, page_server.base, "status") as page:
        for change, sentence, word in STATES:
            answer_health(page, health | change)
            shows(page, "#status-sentence", like=sentence)
            shows(page, "#server-word", word)
            shows(page, "#status-reason", change.get("model_error", ""))
        look(page, "status-failed")
        page.unroute_all()
        page.reload()
        shows(page, "#server-word", "Ready")
        with page.expect_request("**/health"):
            pass  # asked again by itself
        page.route("**/health", lambda _: None)
        shows(page, "#server-word", "Unreachable")
        page.evaluate(HIDDEN)
        page.wait_for_timeout(500)
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(7000)  # more than two rounds
        assert asked == []
