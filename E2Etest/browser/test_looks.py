"""How the page looks: no violation that axe finds, nothing that jumps, and the pictures of the docs."""

import pytest
from playwright.sync_api import expect

from E2Etest.browser import firefox
from E2Etest.browser.conftest import opened
from E2Etest.browser.looking import AXE, VIOLATIONS, looked_at
from E2Etest.browser.states import PROVOKED, SCHEMES, SIZES, STATES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SHIFT = """() => new Promise(resolve => {
    let sum = 0;
    new PerformanceObserver(list => list.getEntries().forEach(e => { if (!e.hadRecentInput) sum += e.value; }))
        .observe({ type: "layout-shift", buffered: true });
    setTimeout(() => resolve(sum), 1500);
})"""


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing(browser, page_server, shots, state, scheme):
    """In every state, size and scheme. Each is kept as a picture."""
    health = page_server.health()
    found = {}
    for size, viewport in SIZES.items():
        look = {"viewport": viewport, "color_scheme": scheme, "reduced_motion": "reduce"}
        with opened(browser, page_server.base, **look) as watched:
            page = watched.page
            watched.allowed += PROVOKED.get(state, [])
            expect(page.locator("#server-word")).not_to_have_text("…")
            STATES[state](page, health)
            found[size] = looked_at(page, shots, f"{state}-{size}-{scheme}")
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
        for panel in ("live", "files", "speak", "transcripts", "t/none", "status"):
            for size, viewport in SIZES.items():
                window.open(f"{page_server.base}/?{size}#{panel}", **viewport)
                assert window.evaluate(
                    "document.fonts.ready.then(() => matchMedia('(prefers-color-scheme: dark)').matches)"
                ) == (scheme == "dark")
                window.run(AXE)
                found[panel, size] = window.evaluate(VIOLATIONS)
    assert found == {place: [] for place in found}


@pytest.mark.nightly
@pytest.mark.parametrize("panel", ["live", "files", "speak", "transcripts", "status"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_jumps_while_the_page_loads(browser, page_server, panel, size):
    """Cumulative layout shift, of which 0.1 is called good: what is shown first stays where it is."""
    with opened(browser, page_server.base, panel, viewport=SIZES[size]) as watched:
        assert watched.page.evaluate(SHIFT) < 0.05
