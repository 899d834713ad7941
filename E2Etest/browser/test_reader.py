"""A user plays a stored transcript, searches it and corrects it."""

import json
import re
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from E2Etest.browser.looking import LOOKED
from E2Etest.browser.person import button, go, opened, poll, press, shows, until
from E2Etest.browser.storing import kept, long_segments, shows_rows, stored, words_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FIRST = "Turn on the kitchen lights and the music in the other room, said the first one of them."
SECOND = "Then the second one said that nobody listens to music in there at this time of the night."
UNDO, REDO = "ControlOrMeta+z", "ControlOrMeta+Shift+z"
PLACE = """() => {
    const range = new Range();
    const node = document.querySelector(".line-text").firstChild;
    range.setStart(node, node.data.indexOf("music") + 2);
    const { left, top } = range.getBoundingClientRect();
    return [left, top + 5];
}"""
KEYS = """keys => {
    const how = { bubbles: true, cancelable: true };
    for (const [key, shiftKey] of keys)
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, ...how }));
}"""
EDIT_ELSEWHERE = """async id => {
    const { Store } = await pageModule('store.js');
    const other = new Store();  // as in another tab
    await other.open();
    const [row] = await other.rows(id);
    await other.putRows(id, [{ ...row, text: 'Theirs.', words: undefined }]);
}"""
PUT = """async ([id, start]) => {
    const { store } = await pageModule('store.js');
    await store.open();
    await store.putRows(id, [{ n: 1e6 + start, start, end: start + 1, text: `row at ${start}`, complete: true }]);
}"""
IN_SIGHT = """() => {
    const box = document.querySelector(".line.now")?.getBoundingClientRect();
    return Boolean(box && box.top > 0 && box.bottom < innerHeight);
}"""


def _opens(page, transcript):
    go(page, f"t/{transcript}")
    shows(page, "#reader-rows .line")


def _player(page, condition):
    """Wait until this holds for the player, or fail with its time."""
    found = f"[{condition}, currentTime, paused]"
    script = f"(({{ currentTime, paused }}) => {found})(document.querySelector('#reader video'))"
    poll(page, lambda found: found[0], lambda page: page.evaluate(script))


def _marked(page, name, *words):
    """Wait until these words, and no others, are marked."""
    found = f"[...(CSS.highlights.get('{name}') ?? [])].map(String)"
    until(page, f"words => JSON.stringify({found}) === JSON.stringify(words)", list(words))


@pytest.mark.slow("plays, edits and searches a transcript by dozens of keys")
def test_a_transcript_is_played_corrected_and_searched_with_undo(browser, page_server, look):
    """The mouse and the keys work. Each edit is stored at once, and is one step to undo."""
    with opened(browser, page_server.base, "transcripts") as page:
        rows = [words_of(FIRST, speaker="Maria"), words_of(SECOND, start_s=20, speaker="Tom")]
        made = stored(page, rows, 30, title="House meeting", model="Qwen/Qwen3-ASR-1.7B")
        _opens(page, made)
        _plays(page, look)
        _splits_and_joins(page, look)
        _replaces(page, look)
        # A page that is closed a tenth of a second after a key keeps the text.
        page.locator(".line .edit").first.click()
        page.keyboard.type(" More.")
        page.wait_for_timeout(100)
        page.reload()
        shows_rows(page, f"{FIRST} More.", SECOND)
        # The tab whose text was overwritten shows that text in a message, and can restore it.
        page.locator(".line .edit").first.click()
        page.keyboard.type(" Mine.")
        shows_rows(page, mine := f"{FIRST} More. Mine.", SECOND)
        page.evaluate(EDIT_ELSEWHERE, made)
        shows(page, "#reader-rows .line-text >> nth=0", "Theirs.")
        expect(page.locator(".toast")).to_contain_text(mine)
        button(page.locator(".toast"), "Use my text").click()
        shows_rows(page, mine, SECOND)


def _plays(page, look):
    """A click on a time or a word starts there. Arrows seek by seconds, words and lines; the waveform is a slider."""
    button(page, "Play from 0:20").click()
    _player(page, "currentTime > 20.2 && !paused")
    expect(page.locator(".line").nth(1)).to_have_attribute("aria-current", "true")
    press(page, "Space")
    _player(page, "paused")
    page.mouse.click(*page.evaluate(PLACE))  # the eighth word, from 2.8 s
    _player(page, "currentTime > 2.75 && currentTime < 10 && !paused")
    press(page, "Space", "Shift+ArrowLeft")
    until(page, "() => CSS.highlights.get('spoken')?.size === 1")
    expect(page.locator(".line").first).to_have_class(re.compile("now"))
    look(page, "reader")
    slider = page.get_by_role("slider", name="Position in the recording")
    slider.press("End")
    # By 5 s, two words, and 5 s back, before the browser can report that it has sought.
    page.evaluate(KEYS, [["Home"], ["ArrowRight"], ["ArrowRight", True], ["ArrowRight", True], ["ArrowLeft"]])
    _player(page, "Math.abs(currentTime - 0.6) < 0.05")
    slider.press("End")
    _player(page, "currentTime > 29")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("of 0:30"))
    page.locator(".line .time").first.focus()
    press(page, "ArrowDown")
    expect(page.locator(".line .time").nth(1)).to_be_focused()
    press(page, "Enter")
    _player(page, "currentTime > 20 && currentTime < 28 && !paused")
    press(page, "Space", ">")
    assert page.evaluate("document.querySelector('#reader video').playbackRate") == 1.25
    press(page, "?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Play or pause")
    look(page, "reader-keys")
    press(page, "Escape")


def _splits_and_joins(page, look):
    """Enter splits a row, and Backspace joins it, unless an input method has the key."""
    before = kept(page)[0]["rows"]
    page.locator(".line .edit").first.focus()
    press(page, "Enter")
    look(page, "reader-edit")
    field = page.get_by_role("textbox", name="Text of the line")
    for how in ({"isComposing": True}, {"keyCode": 229}):  # the second is Safari's
        for key in ("Enter", "Escape"):
            field.dispatch_event("keydown", {"key": key, "bubbles": True, **how})
            expect(field).to_have_text(FIRST)
    page.evaluate("getSelection().collapse(document.querySelector('.line-text').firstChild, 20)")
    press(page, "Enter")
    parts = [FIRST[:19], FIRST[20:], SECOND]
    shows_rows(page, *parts)
    assert [row["start"] for row in kept(page)[0]["rows"]] == [0, pytest.approx(1.6), 20]
    press(page, "Backspace")
    shows_rows(page, FIRST, SECOND)
    press(page, "Escape")
    expect(page.locator(".line .time").first).to_be_focused()
    for key, texts in ((UNDO, parts), (UNDO, [FIRST, SECOND]), (REDO, parts)):
        press(page, key)
        shows_rows(page, *texts)
    page.click("#reader-undo")
    shows_rows(page, FIRST, SECOND)
    assert kept(page)[0]["rows"] == before
    expect(page.locator("#reader-undo")).to_be_disabled()


def _replaces(page, look):
    """Next and previous go round; one or all places are replaced, and all is one step to undo."""
    press(page, "/")
    page.keyboard.type("MUSIC")
    shows(page, "#reader-found", "1 of 2")
    _marked(page, "found-now", "music")
    _marked(page, "found", "music")
    look(page, "reader-find")
    press(page, "Enter", "Enter", "Shift+Enter")
    shows(page, "#reader-found", "2 of 2")
    page.fill("#reader-replacement", "radio music")
    page.click("#reader-replace")
    changed = [text.replace("music", "radio music") for text in (FIRST, SECOND)]
    shows_rows(page, FIRST, changed[1])
    press(page, "Escape", UNDO)
    shows_rows(page, FIRST, SECOND)
    page.click("#reader-search")
    page.click("#reader-replace-all")
    shows_rows(page, *changed)
    button(page.locator(".toast"), "Undo").click()
    shows_rows(page, FIRST, SECOND)
    press(page, "Escape")


@LOOKED
@pytest.mark.nightly
def test_a_transcript_says_what_is_known_of_it(browser, page_server, look):
    """The page marks incomplete rows, uncertain words and parts that were not transcribed, and follows a transcript
    that is played or grows."""
    first, second = words_of(FIRST), words_of(SECOND, start_s=20, complete=False)
    for i, word in enumerate(first["words"]):
        word["confidence"] = 0.2 if i == 3 else 0.95
    times = (("words", 0, 9, ""), ("unheard", 9, 12, "failed"), ("silence", 12, 30, ""))
    coverage = [dict(zip(("kind", "start", "end", "reason"), part, strict=True)) for part in times]
    with opened(browser, page_server.base, "transcripts") as page:
        _opens(page, stored(page, [first, second], 30, coverage=coverage, state="cut"))
        shows(
            page, "#reader-coverage-list > li", ["Words9 s", "Silence18 s", "Not heard: the model failed3 s0:09–0:12"]
        )
        shows(page, ".line:nth-child(2) .line-cut", like="cut off")
        page.check("#reader-unsure")
        _marked(page, "unsure", "kitchen")
        look(page, "reader-cut")
        page.get_by_role("button", name=re.compile("Play from 0:09")).click()
        _player(page, "currentTime >= 9 && currentTime < 15")
        # The page scrolls to the spoken row. The mouse wheel stops that, and a button resumes it.
        segments = long_segments(1000)
        _opens(page, stored(page, segments, segments[-1]["end"]))
        expect(page.locator(".line").nth(20)).to_be_attached()
        for seconds in (40, 90, 2):
            page.evaluate("s => { document.querySelector('#reader video').currentTime = s; }", seconds)
            until(page, IN_SIGHT)
        page.get_by_role("button", name="Play", exact=True).click()
        page.mouse.move(900, 400)
        page.mouse.wheel(0, 3000)
        shows(page, "#reader-follow")
        page.wait_for_timeout(1500)
        assert not page.evaluate(IN_SIGHT)
        page.click("#reader-follow")
        until(page, IN_SIGHT)
        # Rows from this tab and another one appear. Once the tab that transcribes is closed, the reader says so.
        working = page.context.new_page()
        working.goto(page_server.base)
        made = stored(working, [words_of(FIRST)], 60, state="open")
        _opens(page, made)
        shows(page, "#reader-state", like="Transcribing…")
        page.evaluate(PUT, [made, 50])
        working.evaluate(PUT, [made, 40])
        shows_rows(page, FIRST, "row at 40", "row at 50")
        working.close()
        shows(page, "#reader-state-text", "Stopped at 0:51 of 1:00: the page was closed.")


AT_ONCE = """() => {
    const row = document.createElement("p");
    row.innerHTML = "<span>word </span>".repeat(20_000);
    document.body.append(row);
    row.getBoundingClientRect();
    row.remove();
}"""


def _longest_task(trace):
    """The most milliseconds that a task of the page has computed. By the clock, other work would count."""
    events = json.loads(trace)["traceEvents"]
    names = [e for e in events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"]
    mains = {(e["pid"], e["tid"]) for e in names}
    tasks = [e for e in events if "tdur" in e and e["name"].endswith("RunTask") and (e["pid"], e["tid"]) in mains]
    return round(max(task["tdur"] for task in tasks) / 1000)


@pytest.mark.nightly
@pytest.mark.performance
def test_no_long_task_for_20000_words(browser, page_server):
    """Nothing that one does computes for half as long at once as showing all these words at once would."""
    found = {}

    @contextmanager
    def traced(name):
        browser.start_tracing(page=page, categories=["toplevel", "__metadata"])
        yield
        page.wait_for_timeout(300)
        found[name] = _longest_task(browser.stop_tracing())

    with opened(browser, page_server.base, "transcripts") as page:
        made = stored(page, long_segments(20_000))
        rows = len(kept(page)[0]["rows"])
        with traced("opening"):
            go(page, f"t/{made}")
            until(page, "rows => document.querySelectorAll('.line').length === rows", rows)
        with traced("editing"):
            page.locator(".line .edit").nth(rows // 2).click()
            page.keyboard.type("and some more words ", delay=20)
            press(page, "Enter", "Backspace", "Escape", UNDO)
        with traced("replacing"):
            press(page, "/")
            page.keyboard.type("the", delay=20)
            page.fill("#reader-replacement", "that")
            # Rows above may still take their heights, and the button its place.
            page.locator("#reader-replace-all").press("Enter")
            # Locators that look through all buttons would be a long task themselves.
            until(page, "() => document.querySelector('.toast .quiet') !== null")
            page.evaluate("document.querySelector('.toast .quiet').click()")
            page.wait_for_timeout(1000)
        with traced("at once"):
            page.evaluate(AT_ONCE)
    print("longest tasks in ms of computing:", found)
    at_once = found.pop("at once")
    assert all(longest < at_once / 2 for longest in found.values()), (found, at_once)
