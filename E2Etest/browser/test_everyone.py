"""Everybody can use the page: with a keyboard, a screen reader or a phone, in their language, without motion."""

import re

import pytest
from playwright.sync_api import expect

from E2Etest.browser.conftest import DESK, PHONE, opened
from E2Etest.browser.firefox import firefox
from E2Etest.browser.looking import AXE, VIOLATIONS, looked_at
from E2Etest.browser.states import PROVOKED, SCHEMES, SIZES, STATES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PANELS = ("live", "files", "speak", "transcripts", "status")
# Everything that can be used and has no name to be read out, names that lead nowhere, ids that are there twice, and
# targets of under 24 pixels (WCAG 2.5.8).
FAULTS = """() => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    const label = e => {
        const copy = e.labels?.[0]?.cloneNode(true);
        copy?.querySelectorAll("select, input").forEach(part => part.remove());
        return copy?.textContent;
    };
    const own = e => e.matches("button, a") && e.textContent;
    const named = e => e.ariaLabel || label(e) || e.getAttribute("aria-labelledby") || own(e);
    const parts = "button, input, select, textarea, a, video, progress, dialog";
    const ids = all("[id]").map(e => e.id);
    const boxes = all("button, select, input")
        .map(e => [e.outerHTML, e.closest("label")?.getBoundingClientRect().height ?? 0, e.getBoundingClientRect()]);
    return [
        ...all(`${parts}, [role=meter], [role=region], [role=tablist]`).filter(e => !(named(e) || "").trim()),
        ...all("[aria-controls], [aria-labelledby]")
            .flatMap(e => [e.getAttribute("aria-controls"), e.getAttribute("aria-labelledby")])
            .filter(id => id && !document.getElementById(id)),
        ...ids.filter((id, i) => ids.indexOf(id) !== i),
        ...boxes.filter(([, label, box]) => box.height && Math.max(label, box.height) < 24).map(([html]) => html),
    ].map(found => found.outerHTML ?? found);
}"""
MOVING = "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).transitionDuration !== '0s').length"
SHIFT = """() => new Promise(resolve => {
    let sum = 0;
    new PerformanceObserver(list => list.getEntries().forEach(e => { if (!e.hadRecentInput) sum += e.value; }))
        .observe({ type: "layout-shift", buffered: true });
    setTimeout(() => resolve(sum), 500);
})"""


@pytest.mark.slow("opens every panel in three sizes and three languages")
def test_every_panel_is_reached_named_and_readable(browser, page_server):
    """Each panel has an address and fits a phone and 320 pixels, also in a right-to-left language."""
    _first_visit_asks_for_few_files(browser, page_server)
    _goes_round_by_keys(browser, page_server)
    for viewport, locale in ((DESK, "en"), (PHONE, "en"), ({"width": 320, "height": 640}, "de")):
        _looks_for_faults(browser, page_server, viewport, locale)
    _chooses_a_language(browser, page_server)


def _first_visit_asks_for_few_files(browser, page_server):
    """The scripts are one file and the styles are in the page. Nothing moves after it is first drawn."""
    asked = []
    with browser.new_context(service_workers="block") as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_server.base, wait_until="networkidle")
        assert len(asked) <= 12, asked
        assert page.evaluate(SHIFT) < 0.05  # 0.1 is called good
        assert page.evaluate(MOVING) > 0
        page.emulate_media(reduced_motion="reduce")
        assert page.evaluate(MOVING) == 0


def _goes_round_by_keys(browser, page_server):
    """The current link is marked. The browser's Back button works, also out of a transcript."""
    with opened(browser, page_server.base) as watched:
        page = watched.page
        shown = page.locator("main > section:visible")
        page.focus("#tab-live")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        for name in PANELS[1:]:
            page.keyboard.press("Tab")
            expect(page.locator(f"#tab-{name}")).to_be_focused()
            page.keyboard.press("Enter")
            expect(shown).to_have_id(name)
            expect(page.locator("[aria-current]")).to_have_id(f"tab-{name}")
            page.focus(f"#tab-{name}")
        page.goto(f"{page_server.base}/#t/2a-0")
        expect(shown).to_have_id("reader")
        expect(page.locator("[aria-current]")).to_have_id("tab-transcripts")
        page.go_back()
        expect(shown).to_have_id("status")
        page.goto(f"{page_server.base}/#nothing")
        expect(shown).to_have_id("live")


def _looks_for_faults(browser, page_server, viewport, locale):
    """Each panel has names, unique ids and large targets, and does not scroll sideways (WCAG 1.4.10)."""
    with opened(browser, page_server.base, viewport=viewport, locale=locale) as watched:
        page = watched.page
        expect(page.locator("#server-word")).not_to_have_text("…")
        assert page.evaluate("[document.documentElement.lang, document.querySelectorAll('h1').length]") == [locale, 1]
        for panel in PANELS:
            page.click(f"#tab-{panel}")
            expect(page.locator("#status-body" if panel == "status" else f"#{panel}")).to_be_visible()
            expect(page).to_have_title(re.compile(f"^{page.locator(f'#tab-{panel}').inner_text()} · "))
            assert page.evaluate(FAULTS) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], panel


def _chooses_a_language(browser, page_server):
    """The page uses the browser's language, or the one that was chosen, also after a reload."""
    with opened(browser, page_server.base, "status", locale="de-AT") as watched:
        page = watched.page
        expect(page.locator("#status-sentence")).to_have_text("Server bereit, ohne Arbeit")
        page.click("#settings-open")
        page.select_option("#page-language", "ar")
        expect(page.locator("#status-sentence")).to_have_text(re.compile("^الخادم جاهز"))
        page.reload()
        expect(page.locator("#server-word")).to_have_text("جاهز")
        assert page.evaluate("[document.documentElement.lang, document.documentElement.dir]") == ["ar", "rtl"]
        page.set_viewport_size({"width": 320, "height": 640})
        for panel in PANELS:
            page.click(f"#tab-{panel}")
            expect(page.locator(f"#{panel}")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), panel
        page.click("#settings-open")
        page.select_option("#page-language", "")
        expect(page.locator("#settings-title")).to_have_text("Einstellungen")


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing(browser, page_server, state, scheme):
    """Each state, size and color scheme is checked, and saved as a screenshot."""
    health = page_server.health()
    found = {}
    for size, viewport in SIZES.items():
        look = {"viewport": viewport, "color_scheme": scheme, "reduced_motion": "reduce"}
        with opened(browser, page_server.base, **look) as watched:
            page = watched.page
            watched.allowed += PROVOKED.get(state, [])
            expect(page.locator("#server-word")).not_to_have_text("…")
            STATES[state](page, health)
            found[size] = looked_at(page, f"{state}-{size}-{scheme}")
    assert found == {size: [] for size in SIZES}


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_in_firefox(page_server, scheme):
    is_dark = "matchMedia('(prefers-color-scheme: dark)').matches"
    audit = f"(async () => {{ {AXE}; await document.fonts.ready; return [{is_dark}, await {VIOLATIONS}]; }})()"
    with firefox(dark=scheme == "dark") as evaluate:
        found = {
            (panel, size): evaluate(f"{page_server.base}/?{size}#{panel}", viewport, audit)
            for panel in (*PANELS, "t/none")
            for size, viewport in SIZES.items()
        }
    assert found == {place: [scheme == "dark", []] for place in found}
