"""How the page looks: no violation that axe finds, nothing that jumps, and the pictures of the docs."""

import base64
import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from E2Etest.browser import firefox
from E2Etest.browser.conftest import opened
from E2Etest.browser.states import SCHEMES, SIZES, STATES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

AXE = (Path(__file__).parent / "axe/axe.min.js").read_text(encoding="utf-8")
# Two rules that axe leaves out unless they are asked for.
VIOLATIONS = """axe.run(document, { rules: {
    "label-content-name-mismatch": { enabled: true }, "target-size": { enabled: true },
} }).then(found => found.violations.map(
    one => [one.id, one.nodes.map(node => node.target.join(" "))]))"""
# A folder for pictures of every state: `make pictures` gives docs/images/page.
PICTURES = os.environ.get("E2E_PICTURES", "")
SHIFT = """() => new Promise(resolve => {
    let sum = 0;
    new PerformanceObserver(list => list.getEntries().forEach(e => { if (!e.hadRecentInput) sum += e.value; }))
        .observe({ type: "layout-shift", buffered: true });
    setTimeout(() => resolve(sum), 1500);
})"""


def _picture(page, path):
    """As WebP, which the driver itself cannot write."""
    session = page.context.new_cdp_session(page)
    got = session.send("Page.captureScreenshot", {"format": "webp", "quality": 82})
    path.write_bytes(base64.b64decode(got["data"]))
    session.detach()


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing(browser, page_server, shots, state, scheme):
    """In every state, size and scheme. Each is kept as a picture."""
    health = page_server.health()
    folder = Path(PICTURES or shots)
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for size, viewport in SIZES.items():
        look = {"viewport": viewport, "color_scheme": scheme, "reduced_motion": "reduce"}
        with opened(browser, page_server.base, **look) as watched:
            page = watched.page
            expect(page.locator("#server-word")).not_to_have_text("…")
            STATES[state](page, health)
            page.wait_for_timeout(300)
            _picture(page, folder / f"{state}-{size}-{scheme}.webp")
            page.evaluate(AXE)
            found[size] = page.evaluate(VIOLATIONS)
    assert found == {size: [] for size in SIZES}


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_in_firefox(page_server, scheme):
    """In every panel and size."""
    program = firefox.found()
    if program is None:
        pytest.fail("The tests of the page need a Firefox: apt-get install -y firefox-esr", pytrace=False)
    found = {}
    with firefox.running(program, dark=scheme == "dark") as window:
        for panel in ("live", "files", "transcripts", "t/none", "status"):
            for size, viewport in SIZES.items():
                window.open(f"{page_server.base}/?{size}#{panel}", **viewport)
                assert window.evaluate(
                    "document.fonts.ready.then(() => matchMedia('(prefers-color-scheme: dark)').matches)"
                ) == (scheme == "dark")
                window.run(AXE)
                found[panel, size] = window.evaluate(VIOLATIONS)
    assert found == {place: [] for place in found}


@pytest.mark.nightly
@pytest.mark.parametrize("panel", ["live", "files", "transcripts", "status"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_jumps_while_the_page_loads(browser, page_server, panel, size):
    """Cumulative layout shift, of which 0.1 is called good: what is shown first stays where it is."""
    with opened(browser, page_server.base, panel, viewport=SIZES[size]) as watched:
        assert watched.page.evaluate(SHIFT) < 0.05
