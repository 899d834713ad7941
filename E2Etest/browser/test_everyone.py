"""Everybody can use the page: with a keyboard, a screen reader or a phone, in their language, without motion."""

import re

import pytest
from playwright.sync_api import expect

from E2Etest.browser.firefox import firefox
from E2Etest.browser.looking import AXE, SCHEMES, SIZES, VIOLATIONS, audit
from E2Etest.browser.person import go, opened, press, shows

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SMALL = {"width": 320, "height": 640}
PANELS = ("live", "files", "speak", "transcripts", "status")
MOVING = "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).transitionDuration !== '0s').length"
SHIFT = """() => new Promise(resolve => {
    let sum = 0;
    new PerformanceObserver(list => list.getEntries().forEach(e => { if (!e.hadRecentInput) sum += e.value; }))
        .observe({ type: "layout-shift", buffered: true });
    setTimeout(() => resolve(sum), 500);
})"""


@pytest.mark.slow("opens every panel in two sizes and three languages")
def test_every_panel_is_reached_named_and_readable(browser, page_server, look):
    """Keys and links reach them, in any size and language. Axe finds nothing, and no page scrolls sideways."""
    asked = []
    with browser.new_context(service_workers="block") as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_server.base, wait_until="networkidle")
        # The scripts are one file and the styles are in the page. Nothing moves after it is first drawn.
        assert len(asked) <= 12, asked
        assert page.evaluate(SHIFT) < 0.05  # 0.1 is called good
        assert page.evaluate(MOVING) > 0
        page.emulate_media(reduced_motion="reduce")
        assert page.evaluate(MOVING) == 0
    with opened(browser, page_server.base) as page:
        _goes_round_by_keys(page, look)
    with opened(browser, page_server.base, "status", viewport=SMALL, locale="de-AT") as page:
        _chooses_a_language(page)


def _goes_round_by_keys(page, look):
    """The current link is marked. The browser's Back button works, also out of a transcript."""
    shown = page.locator("main > section:visible")
    page.focus("#tab-live")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    expect(page.locator("#server-word")).not_to_have_text("…")
    for name in PANELS:
        if name != "live":
            press(page, "Tab")
            expect(page.locator(f"#tab-{name}")).to_be_focused()
            press(page, "Enter")
        expect(shown).to_have_id(name)
        expect(page.locator("[aria-current]")).to_have_id(f"tab-{name}")
        expect(page).to_have_title(re.compile(f"^{name}", re.IGNORECASE))
        assert audit(page) == []
        look(page, name)
        page.focus(f"#tab-{name}")
    go(page, "t/2a-0")
    expect(shown).to_have_id("reader")
    expect(page.locator("[aria-current]")).to_have_id("tab-transcripts")
    shows(page, "#reader-missing a")
    look(page, "no-transcript")
    page.go_back()
    expect(shown).to_have_id("status")
    go(page, "nothing")
    expect(shown).to_have_id("live")


def _chooses_a_language(page):
    """The page uses the browser's language, or the one that was chosen, also after a reload."""
    shows(page, "#status-sentence", "Server bereit, ohne Arbeit")
    _reads_every_panel(page, "de", "ltr")
    page.click("#settings-open")
    page.select_option("#page-language", "ar")
    shows(page, "#status-sentence", like="^الخادم جاهز")
    page.reload()
    shows(page, "#server-word", "جاهز")
    _reads_every_panel(page, "ar", "rtl")
    page.click("#settings-open")
    page.select_option("#page-language", "")
    shows(page, "#settings-title", "Einstellungen")


def _reads_every_panel(page, language, direction):
    """On a small screen nothing has to be scrolled sideways (WCAG 1.4.10)."""
    assert page.evaluate("[document.documentElement.lang, document.documentElement.dir]") == [language, direction]
    for panel in PANELS:
        page.click(f"#tab-{panel}")
        shows(page, f"#{panel}")
        assert direction == "ltr" or audit(page) == []  # in a language that goes from the left it was looked at above
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), panel


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_in_firefox(page_server, scheme):
    is_dark = "matchMedia('(prefers-color-scheme: dark)').matches"
    begun = "while (document.querySelector('main').inert) await new Promise(next => setTimeout(next, 10))"
    audit = f"(async () => {{ {AXE}; {begun}; await document.fonts.ready; return [{is_dark}, await {VIOLATIONS}]; }})()"
    with firefox(dark=scheme == "dark") as evaluate:
        found = {
            (panel, size): evaluate(f"{page_server.base}/?{size}#{panel}", viewport, audit)
            for panel in (*PANELS, "t/none")
            for size, viewport in SIZES.items()
        }
    assert found == {place: [scheme == "dark", []] for place in found}
