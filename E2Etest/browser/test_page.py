"""The page as a whole: the server's state, the keyboard, names for those who do not see it, its looks."""

import re

import pytest
from playwright.sync_api import expect

from asr_server import demo
from asr_server.engine.fake_script import FakeScript
from E2Etest.browser.conftest import DESK, PHONE, opened
from E2Etest.browser.looking import TYPEFACE
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Everything that can be used and has no name to be read out.
NAMELESS = """() => {
    const label = e => {
        const copy = e.labels?.[0]?.cloneNode(true);
        copy?.querySelectorAll("select, input").forEach(part => part.remove());
        return copy?.textContent;
    };
    const own = e => e.matches("button, a") && e.textContent;
    const named = e => e.ariaLabel || label(e) || e.getAttribute("aria-labelledby") || own(e);
    const parts = "button, input, select, textarea, a, video, progress, dialog";
    const used = `${parts}, [role=meter], [role=region], [role=tablist]`;
    return [...document.querySelectorAll(used)].filter(e => !(named(e) || "").trim()).map(e => e.outerHTML);
}"""
DANGLING = """() => [...document.querySelectorAll("[aria-controls], [aria-labelledby]")]
    .flatMap(e => [e.getAttribute("aria-controls"), e.getAttribute("aria-labelledby")])
    .filter(id => id && !document.getElementById(id))"""
TWICE = """() => {
    const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
    return ids.filter((id, i) => ids.indexOf(id) !== i);
}"""
SMALL = """() => [...document.querySelectorAll("button, select, input")]
    .map(e => [e.outerHTML, e.closest("label")?.getBoundingClientRect().height ?? 0, e.getBoundingClientRect()])
    .filter(([, label, box]) => box.height && Math.max(label, box.height) < 24).map(([html]) => html)"""


def test_the_first_visit_asks_for_few_files(browser, page_server):
    """Scripts are one file, and styles are in the page."""
    asked = []
    with browser.new_context(service_workers="block") as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_server.base, wait_until="networkidle")
        expect(page.locator("#server-word")).to_have_text("Ready")
    assert len(asked) <= 12, asked


@pytest.mark.parametrize(
    "viewport",
    [
        pytest.param(DESK, id="desk", marks=pytest.mark.nightly),
        pytest.param(PHONE, id="phone"),
        pytest.param({"width": 320, "height": 640}, id="narrow", marks=pytest.mark.nightly),
    ],
)
def test_everything_has_a_name_and_room(browser, page_server, viewport):
    """Names for all that can be used, no id twice, targets of 24 pixels (WCAG 2.5.8), no scrolling sideways."""
    with opened(browser, page_server.base, viewport=viewport) as watched:
        page = watched.page
        expect(page.locator("#server-word")).to_have_text("Ready")
        assert page.evaluate("[document.documentElement.lang, document.querySelectorAll('h1').length]") == ["en", 1]
        for panel in ("live", "files", "speak", "transcripts", "status"):
            page.click(f"#tab-{panel}")
            expect(page.locator("#status-body" if panel == "status" else f"#{panel}")).to_be_visible()
            assert page.evaluate(NAMELESS) == []
            assert page.evaluate(DANGLING) == []
            assert page.evaluate(TWICE) == []
            assert page.evaluate(SMALL) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], panel


@pytest.mark.nightly
@pytest.mark.parametrize("width", [320, 390])
@pytest.mark.parametrize("word", ["Shutting down", "Loading model", "Key needed"])
def test_the_head_has_room_for_every_state(browser, page_server, width, word):
    """On a phone too, with a key: nothing is cut off, nothing scrolls sideways."""
    with opened(browser, page_server.base, viewport={"width": width, "height": 640}) as watched:
        page = watched.page
        page.click("#settings-open")
        page.fill("#key-field", "any")
        page.keyboard.press("Enter")
        expect(page.locator("#server-word")).to_have_text("Ready")
        page.evaluate("word => { document.getElementById('server-word').textContent = word; }", word)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.getElementById('settings-open').getBoundingClientRect().right") <= width


@pytest.mark.nightly
@pytest.mark.parametrize(("model", "told"), [("demo", True), ("Qwen/Qwen3-ASR-0.6B", False)])
def test_the_demonstration_model_is_reported_as_one(browser, page_server, model, told):
    """Whoever speaks freely to it would take its answers for the server's; of another model nothing is said."""
    health = page_server.health() | {"model_id": model}
    with opened(browser, page_server.base) as watched:
        page = watched.page
        page.route("**/health", lambda route: route.fulfill(json=health))
        page.reload()
        expect(page.locator("#server-word")).to_have_text("Ready")
        expect(page.locator("#live .model-note[data-model=demo]")).to_be_visible(visible=told)
        page.click("#tab-files")
        expect(page.locator("#files .model-note[data-model=demo]")).to_be_visible(visible=told)


@pytest.mark.parametrize("locale", ["en", pytest.param("de", marks=pytest.mark.nightly), "ar"])
def test_nothing_is_scrolled_sideways_at_320_pixels(browser, page_server, locale):
    """In any panel (WCAG 1.4.10); the title of the tab begins with the panel's name."""
    with opened(browser, page_server.base, viewport={"width": 320, "height": 640}, locale=locale) as watched:
        page = watched.page
        expect(page.locator("#live-drop")).to_be_visible()
        for panel, shown in {"live": "#live-start", "files": "#files-drop", "speak": "#speak-read"}.items():
            page.click(f"#tab-{panel}")
            expect(page.locator(shown)).to_be_visible()
            expect(page).to_have_title(re.compile(f"^{page.locator(f'#tab-{panel}').inner_text()} · "))
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_nothing_moves_when_the_typeface_comes_late(browser, page_server):
    """Until then the text is in Arial, or its like, with the widths and heights of the page's own typeface."""
    place = """() => ["tabs", "live-empty", "live-more"].flatMap(id => {
        const { x, y, width, height } = document.getElementById(id).getBoundingClientRect();
        return [x, y, width, height];
    })"""
    places = []
    for late in (False, True):
        with opened(browser, page_server.base) as watched:
            watched.allowed += ["ERR_FAILED"]
            if late:
                watched.page.route("**/*.woff2", lambda route: route.abort())
                watched.page.reload()
            expect(watched.page.locator("#live-more .chip").first).to_be_visible()
            if not late:
                watched.page.evaluate(TYPEFACE)
            places.append(watched.page.evaluate(place))
    assert places[1] == pytest.approx(places[0], abs=4)


@pytest.mark.nightly
def test_only_languages_of_the_model_can_be_chosen(browser, page_server):
    """A language that was chosen for another model becomes automatic."""
    health = page_server.health()
    with opened(browser, page_server.base) as watched:
        page = watched.page
        page.select_option("#files-language", "de", force=True)
        page.route("**/health", lambda route: route.fulfill(json=health | {"languages": ["en"]}))
        page.reload()
        for panel in ("live", "files"):
            expect(page.locator(f"#{panel}-language option:enabled")).to_have_text(["English (only)"])
            expect(page.locator(f"#{panel}-language")).to_have_value("")


def test_the_panels_have_addresses(browser, page_server):
    """Links of the keyboard, marked where one is; the way back of the browser leads back, also out of a transcript."""
    with opened(browser, page_server.base) as watched:
        page = watched.page
        shown = page.locator("main > section:visible")
        page.focus("#tab-live")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        for name in ("files", "speak", "transcripts", "status"):
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


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_systems_colours(browser, page_server, scheme, shots):
    """Dark paper in the dark, light paper in the light, on every panel."""
    with opened(browser, page_server.base, color_scheme=scheme) as watched:
        page = watched.page
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", colour)))
        assert (brightness < 3 * 64) == (scheme == "dark")
        page.screenshot(path=shots / f"live-{scheme}.png")


@pytest.mark.nightly
def test_nothing_moves_for_those_who_do_not_want_it(browser, page_server):
    """No transition is left when the system asks for less motion."""
    moving = "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).transitionDuration !== '0s').length"
    with opened(browser, page_server.base) as watched:
        assert watched.page.evaluate(moving) > 0
    with opened(browser, page_server.base, reduced_motion="reduce") as watched:
        assert watched.page.evaluate(moving) == 0


def test_status_begins_with_a_sentence(browser, page_server):
    """Then charts; model, options and their reasons are folded away, and what is off below them."""
    health = page_server.health()
    with opened(browser, page_server.base, "status") as watched:
        page = watched.page
        expect(page.locator("#status-sentence")).to_have_text("Server ready, idle")
        expect(page.locator("#status-model")).to_contain_text(health["model_id"])
        expect(page.locator("#status-charts svg")).to_have_count(2)
        expect(page.locator("#status-facts")).to_be_hidden()
        page.click("#status summary >> nth=0")
        expect(page.locator("#status-facts")).to_contain_text("in memory")
        expect(page.locator("#status-facts")).to_contain_text(health["version"])
        expect(page.locator("#status-facts")).to_contain_text(health["speech_model"])
        active = [option for option in health["plan"] if option["active"]]
        expect(page.locator("#status-plan tr")).to_have_count(len(active))
        for option in active:
            expect(page.locator("#status-plan")).to_contain_text(option["reason"])
        expect(page.locator("#status-off tr")).to_have_count(len(health["plan"]) - len(active))
        expect(page.locator("#status-off tr").first).to_be_hidden()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "sentence", "word"),
    [
        ({"model_on_disk": False}, "not on the server's disk", "No model yet"),
        ({"model_on_disk": False, "model_state": "loading"}, "being loaded", "Loading model"),
        ({"model_state": "loading", "downloaded_mb": 512}, "being downloaded: 512 MiB", "Loading model"),
        ({"model_state": "failed", "model_error": "No network.", "status": "degraded"}, "nothing can be", "No model"),
        ({"status": "draining"}, "shutting down", "Shutting down"),
    ],
    ids=["missing", "loading", "download", "failed", "draining"],
)
def test_status_says_what_keeps_the_server_from_hearing(browser, page_server, change, sentence, word):
    """In the sentence and in the head of the page; the reason of a failure is given."""
    health = page_server.health() | {"model_loaded": False, "model_state": "unloaded"} | change
    with opened(browser, page_server.base, "status") as watched:
        page = watched.page
        page.route("**/health", lambda route: route.fulfill(json=health))
        page.reload()
        expect(page.locator("#status-sentence")).to_contain_text(sentence)
        expect(page.locator("#server-word")).to_have_text(word)
        expect(page.locator("#status-reason")).to_have_text(health["model_error"])


@pytest.mark.nightly
def test_health_is_asked_only_while_somebody_looks(browser, page_server):
    """A page in the background leaves the server alone."""
    with opened(browser, page_server.base, "status") as watched:
        page = watched.page
        expect(page.locator("#status-body")).to_be_visible()
        with page.expect_request("**/health"):
            pass  # asked again by itself
        page.evaluate(
            """() => {
                Object.defineProperty(document, "hidden", { get: () => true });
                document.dispatchEvent(new Event("visibilitychange"));
            }"""
        )
        page.wait_for_timeout(500)
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(7000)  # more than two rounds
        assert asked == []


@pytest.mark.nightly
def test_a_server_that_is_gone_is_reported_and_found_again(browser, page_server):
    """In the head of the page and on the panel."""
    with Proxy(page_server.port) as proxy, opened(browser, proxy.base, "status") as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        expect(page.locator("#server-word")).to_have_text("Ready")
        proxy.refusing = True
        proxy.cut()
        expect(page.locator("#status-notice")).to_have_text(re.compile("cannot be reached"))
        expect(page.locator("#server-word")).to_have_text("Unreachable")
        proxy.refusing = False
        expect(page.locator("#server-word")).to_have_text("Ready")
        expect(page.locator("#status-notice")).to_be_hidden()


@pytest.mark.nightly
def test_a_server_that_turns_away_is_not_called_unreachable(browser, page_server):
    """It is there, and the panel says what it says."""
    body = {"error": {"message": "Later.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
    with opened(browser, page_server.base, "status") as watched:
        watched.allowed += ["429"]
        page = watched.page
        page.route("**/health", lambda route: route.fulfill(status=429, json=body))
        expect(page.locator("#server-word")).to_have_text("Busy")
        expect(page.locator("#status-notice")).to_have_text(re.compile("The server is busy.*Later"))


@pytest.mark.nightly
def test_a_server_that_does_not_answer_is_not_called_ready(browser, page_server):
    """A stopped process still takes connections, for as long as anybody waits."""
    with opened(browser, page_server.base, "status") as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        expect(page.locator("#server-word")).to_have_text("Ready")
        page.route("**/health", lambda _: None)
        expect(page.locator("#server-word")).to_have_text("Unreachable", timeout=30_000)


@pytest.mark.nightly
def test_a_model_that_is_not_there_yet_is_reported(browser, start):
    """A fresh server has no model in memory: the page says so while it is loaded, then shows the words."""
    recording = demo.sample()
    with start(script=FakeScript(load_s=3.0)) as server, opened(browser, server.base, "files") as watched:
        page = watched.page
        expect(page.locator("#server-word")).to_have_text("Ready")
        page.set_input_files("#files-input", recording.recording)
        expect(page.locator("#reader-state")).to_have_text(re.compile("not in memory|being loaded"))
        expect(page.locator("#reader-rows .line-text")).to_have_text(recording.text)
        expect(page.locator("#reader-state")).to_be_hidden()


def test_the_page_speaks_the_readers_language(browser, page_server):
    """The browser's, or the one that was chosen; Arabic runs from right to left. The choice outlasts a reload."""
    with opened(browser, page_server.base, "status", locale="de-AT") as watched:
        page = watched.page
        expect(page.locator("#tab-files")).to_have_text("Dateien")
        expect(page.locator("#status-sentence")).to_have_text("Server bereit, ohne Arbeit")
        page.click("#settings-open")
        page.select_option("#page-language", "ar")
        expect(page.locator("#status-sentence")).to_have_text(re.compile("^الخادم جاهز"))
        assert page.evaluate("[document.documentElement.lang, document.documentElement.dir]") == ["ar", "rtl"]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.reload()
        expect(page.locator("#server-word")).to_have_text("جاهز")
        page.click("#settings-open")
        page.select_option("#page-language", "")
        expect(page.locator("#settings-title")).to_have_text("Einstellungen")


@pytest.mark.nightly
def test_a_toast_leaves_the_controls_free(browser, page_server):
    """It stays above what the panel keeps at the bottom, and can be put away."""
    with opened(browser, page_server.base, viewport=PHONE) as watched:
        page = watched.page
        page.click("#settings-open")
        page.fill("#key-field", "any")
        page.keyboard.press("Enter")
        toast = page.locator(".toast")
        expect(toast).to_have_text("Key saved for this tab")
        page.wait_for_timeout(300)
        box, dock = toast.bounding_box(), page.locator("#live .dock").bounding_box()
        assert box["y"] + box["height"] <= dock["y"]
        toast.get_by_role("button").click()
        expect(toast).to_have_count(0)
