"""Reader: a stored transcript is listened to, read, searched and corrected; unchanged words keep their times."""

import json
import re

import docx
import pytest
from playwright.sync_api import expect

from E2Etest import recordings
from E2Etest.browser.conftest import DESK, PHONE, opened
from E2Etest.browser.storing import hum, long_segments, rows_of, stored, until, words_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WIDE = {"width": 1280, "height": 820}
FIRST = "Turn on the kitchen lights and the music in the other room, said the first one of them."
SECOND = "Then the second one said that nobody listens to music in there at this time of the night."


def _two(**more):
    """Two rows, of 0 to 7.2 s and of 20 to 27.2 s."""
    return [words_of(FIRST, **more), words_of(SECOND, start_s=20, **more)]


def _open(page, transcript):
    page.evaluate("id => { location.hash = `#t/${id}`; }", transcript)
    expect(page.locator("#reader-work")).to_be_visible()
    expect(page.locator("#reader-rows .line").first).to_be_visible()


def _expect_texts(page, texts):
    """Wait until the rows have these texts: keys are processed a moment after they are pressed."""
    expect(page.locator("#reader-rows .line-text")).to_have_text(texts)


def _marked(page, name):
    """The texts that a highlight marks."""
    return page.evaluate("name => [...(CSS.highlights.get(name) ?? [])].map(String)", name)


def _media(page):
    return page.evaluate(
        "(({ paused, currentTime }) => ({ paused, currentTime }))(document.querySelector('#reader video'))"
    )


def _wait_stored(page, transcript, texts):
    """Wait until the rows are stored like this; storing follows an edit."""
    until(
        page,
        """async ([id, texts]) => {
            const rows = await (await pageModule('store.js')).store.rows(id);
            return JSON.stringify(rows.map((row) => row.text)) === JSON.stringify(texts);
        }""",
        [transcript, texts],
    )


def _times(rows):
    return {w["text"].strip(" .,"): (w["start"], w["end"]) for row in rows for w in row["words"]}


def test_a_click_plays_from_there_and_the_spoken_word_is_marked(browser, page_server, shots):
    """On a row's time and on a word; both play, and the word that is spoken is marked in its row."""
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        _open(page, stored(page, _two(), hum(30), durationS=30))
        page.get_by_role("button", name="Play from 0:20").click()
        until(page, "() => document.querySelector('#reader video').currentTime > 20.2")
        assert not _media(page)["paused"]
        expect(page.locator(".line").nth(1)).to_have_attribute("aria-current", "true")
        page.screenshot(path=shots / "reader.png")
        page.keyboard.press("Space")
        until(page, "() => document.querySelector('#reader video').paused")
        # The word "music" is the ninth, from 3.2 s.
        word = page.evaluate(
            """() => {
                const range = new Range();
                const node = document.querySelector(".line-text").firstChild;
                range.setStart(node, node.data.indexOf("music"));
                range.setEnd(node, node.data.indexOf("music") + 5);
                const { x, y, width, height } = range.getBoundingClientRect();
                return { x: x + width / 2, y: y + height / 2 };
            }"""
        )
        page.mouse.click(word["x"], word["y"])
        until(page, "() => document.querySelector('#reader video').currentTime < 10")
        page.keyboard.press("Space")
        assert 2.75 < _media(page)["currentTime"] < 8
        page.keyboard.press("Shift+ArrowLeft")
        until(page, "() => [...(CSS.highlights.get('spoken') ?? [])].length === 1")
        expect(page.locator(".line").first).to_have_class(re.compile("now"))


@pytest.mark.nightly
def test_a_transcript_that_was_left_while_it_played_does_not_play_later(browser, page_server):
    """The button says so."""
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        _open(page, stored(page, _two(), hum(30), durationS=30))
        page.locator("#reader-player").get_by_role("button", name="Play", exact=True).click()
        expect(page.locator("#reader-player").get_by_role("button", name="Pause")).to_be_visible()
        page.click("#reader-back")
        page.go_back()
        expect(page.locator("#reader-rows .line").first).to_be_visible()
        expect(page.locator("#reader-player").get_by_role("button", name="Play", exact=True)).to_be_visible()
        assert _media(page)["paused"]


@pytest.mark.nightly
def test_an_edit_keeps_the_times_of_all_other_words(browser, page_server):
    """One corrected word costs no other word its time; what is typed is stored at once, and a reload has it."""
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        made = stored(page, _two(), hum(30), durationS=30)
        before = _times(rows_of(page, made))
        _open(page, made)
        page.get_by_role("button", name="Edit the line at 0:00").click()
        text = page.get_by_role("textbox", name="Text of the line at 0:00")
        expect(text).to_be_focused()
        page.evaluate(
            """() => {
                const node = document.querySelector(".line-text").firstChild;
                const at = node.data.indexOf("kitchen");
                getSelection().setBaseAndExtent(node, at, node, at + 7);
            }"""
        )
        page.keyboard.type("<bath>room")
        wanted = FIRST.replace("kitchen", "<bath>room")
        _wait_stored(page, made, [wanted, SECOND])
        page.reload()
        expect(page.locator(".line-text").first).to_have_text(wanted)
        rows = rows_of(page, made)
        after = _times(rows)
        assert {word: after[word] for word in before if word != "kitchen"} == {
            w: t for w, t in before.items() if w != "kitchen"
        }
        assert after["<bath>room"] == pytest.approx(before["kitchen"])
        assert "".join(word["text"] for word in rows[0]["words"]) == wanted


@pytest.mark.nightly
def test_rows_are_split_joined_undone_and_done_again_by_keys(browser, page_server):
    """Enter splits, Backspace at the start joins, Escape ends; each is undone by one Ctrl+Z and stored."""
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        made = stored(page, _two(), durationS=30)
        before = rows_of(page, made)
        _open(page, made)
        page.locator(".line .edit").first.focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Home")
        page.evaluate("getSelection().collapse(document.querySelector('.line-text').firstChild, 20)")
        page.keyboard.press("Enter")
        parts = [FIRST[:19], FIRST[20:], SECOND]
        _expect_texts(page, parts)
        _wait_stored(page, made, parts)
        assert [row["start"] for row in rows_of(page, made)] == [0, pytest.approx(1.6), 20]
        page.keyboard.press("Backspace")
        _wait_stored(page, made, [FIRST, SECOND])
        page.keyboard.press("Escape")
        expect(page.locator(".line .time").first).to_be_focused()
        page.keyboard.press("ControlOrMeta+z")
        _expect_texts(page, parts)
        page.keyboard.press("ControlOrMeta+z")
        _expect_texts(page, [FIRST, SECOND])
        _wait_stored(page, made, [FIRST, SECOND])
        assert rows_of(page, made) == before
        page.keyboard.press("ControlOrMeta+Shift+z")
        _expect_texts(page, parts)
        page.click("#reader-undo")
        _expect_texts(page, [FIRST, SECOND])
        expect(page.locator("#reader-undo")).to_be_disabled()


@pytest.mark.nightly
@pytest.mark.parametrize("how", [{"isComposing": True}, {"keyCode": 229}], ids=["composing", "safari"])
@pytest.mark.parametrize("key", ["Enter", "Escape"])
def test_keys_of_an_input_method_neither_split_nor_end(browser, page_server, key, how):
    """Enter takes a composed word and Escape drops it; the line is not theirs."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        _open(page, stored(page, _two()))
        page.locator(".line .edit").first.click()
        page.get_by_role("textbox", name="Text of the line").dispatch_event(
            "keydown", {"key": key, "bubbles": True, **how}
        )
        expect(page.get_by_role("textbox", name="Text of the line")).to_have_text(FIRST)


@pytest.mark.nightly
def test_a_row_without_text_goes_and_comes_back(browser, page_server):
    """All text deleted removes the row; undoing has it with its times."""
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        made = stored(page, _two())
        before = rows_of(page, made)
        _open(page, made)
        page.locator(".line .edit").first.click()
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.press("Delete")
        page.keyboard.press("Escape")
        _wait_stored(page, made, [SECOND])
        page.keyboard.press("ControlOrMeta+z")
        _wait_stored(page, made, [FIRST, SECOND])
        assert rows_of(page, made) == before


@pytest.mark.nightly
def test_search_goes_round_and_replaces_with_the_times_kept(browser, page_server):
    """Next and previous go round; one or all places are replaced, and all is one step to undo."""
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        made = stored(page, _two())
        before = _times(rows_of(page, made))
        _open(page, made)
        page.keyboard.press("/")
        page.keyboard.type("MUSIC")
        expect(page.locator("#reader-found")).to_have_text("1 of 2")
        until(page, "() => CSS.highlights.get('found-now')?.size === 1")
        assert (_marked(page, "found-now"), _marked(page, "found")) == (["music"], ["music"])
        page.keyboard.press("Enter")
        expect(page.locator("#reader-found")).to_have_text("2 of 2")
        page.keyboard.press("Enter")
        page.keyboard.press("Shift+Enter")
        expect(page.locator("#reader-found")).to_have_text("2 of 2")
        page.fill("#reader-replacement", "radio music")
        page.click("#reader-replace")
        _wait_stored(page, made, [FIRST, SECOND.replace("music", "radio music")])
        page.keyboard.press("Escape")
        page.keyboard.press("ControlOrMeta+z")
        page.click("#reader-search")
        page.click("#reader-replace-all")
        _wait_stored(page, made, [FIRST.replace("music", "radio music"), SECOND.replace("music", "radio music")])
        after = _times(rows_of(page, made))
        # Words that occur in both rows, as "the", are those of the second in both.
        assert all(after[word] == before[word] for word in before)
        page.locator(".toast").get_by_role("button", name="Undo").click()
        _wait_stored(page, made, [FIRST, SECOND])


@pytest.mark.nightly
def test_the_keyboard_plays_and_seeks_by_words(browser, page_server):
    """Space, the arrows, the waveform as a slider; "?" lists the keys."""
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        _open(page, stored(page, _two(), hum(30), durationS=30))
        until(page, "() => document.querySelector('#reader video').readyState > 0")
        for key, seconds in (
            ("ArrowRight", 5),
            ("ArrowRight", 10),
            ("ArrowLeft", 5),
            ("Shift+ArrowRight", 5.2),
            ("Shift+ArrowRight", 5.6),
        ):
            page.keyboard.press(key)
            until(page, "s => Math.abs(document.querySelector('#reader video').currentTime - s) < 0.05", seconds)
        page.keyboard.press("Shift+ArrowLeft")
        until(page, "() => Math.abs(document.querySelector('#reader video').currentTime - 5.2) < 0.05")
        page.get_by_role("slider", name="Position in the recording").press("End")
        until(page, "() => document.querySelector('#reader video').currentTime > 29")
        expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", re.compile("of 0:30"))
        page.locator(".line .time").first.focus()
        page.keyboard.press("ArrowDown")
        expect(page.locator(".line .time").nth(1)).to_be_focused()
        page.keyboard.press("Enter")
        until(
            page,
            "() => (m => m.currentTime > 20 && !m.paused)(document.querySelector('#reader video'))",
        )
        page.keyboard.press("Space")
        page.keyboard.press(">")
        assert page.evaluate("document.querySelector('#reader video').playbackRate") == 1.25
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Play or pause")


@pytest.mark.nightly
@pytest.mark.parametrize("size", [DESK, PHONE, {"width": 820, "height": 1180}], ids=["desk", "phone", "tablet"])
def test_a_video_leaves_the_text_in_sight(browser, page_server, size, shots):
    """The picture is beside the text or above it, and the first row is in sight; subtitles lie over the picture."""
    video = recordings.talking_video()
    with opened(browser, page_server.base, "transcripts", viewport=size) as watched:
        page = watched.page
        _open(page, stored(page, [words_of(recordings.sample()[1])], video, durationS=4))
        expect(page.locator("#reader .screen")).to_be_visible()
        row, screen = page.locator(".line").first.bounding_box(), page.locator("#reader .screen").bounding_box()
        assert row["y"] + row["height"] <= size["height"]
        assert screen["height"] < 0.5 * size["height"]
        page.get_by_role("button", name="Play", exact=True).click()
        expect(page.locator("#reader .subtitle")).to_contain_text(recordings.sample()[1].split()[0])
        page.screenshot(path=shots / f"reader-video-{size['width']}.png")


@pytest.mark.nightly
def test_the_spoken_word_of_a_long_recording_is_kept_in_sight_until_one_scrolls(browser, page_server):
    """Ten minutes in, its row is in the window; a turn of the wheel stops that, and a button takes it up again."""
    segments = long_segments(4000)
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        _open(page, stored(page, segments, segments[-1]["end"]))
        until(page, "() => document.querySelector('#reader video').readyState > 0")
        in_sight = """() => {
            const box = document.querySelector(".line.now")?.getBoundingClientRect();
            return Boolean(box && box.top > 0 && box.bottom < innerHeight);
        }"""
        for seconds in (600, 1200, 30):
            page.evaluate("s => { document.querySelector('#reader video').currentTime = s; }", seconds)
            until(page, in_sight)
        page.get_by_role("button", name="Play", exact=True).click()
        page.mouse.move(900, 400)
        page.mouse.wheel(0, 3000)
        expect(page.locator("#reader-follow")).to_be_visible()
        page.wait_for_timeout(1500)
        assert not page.evaluate(in_sight)
        page.click("#reader-follow")
        until(page, in_sight)


@pytest.mark.nightly
def test_what_is_known_of_the_words_is_shown(browser, page_server):
    """Speakers with their names, rows that were cut off, uncertain words, what was not heard, a translation."""
    first, second = _two()
    first["speaker"], second["speaker"], second["complete"] = "A", "B", False
    for i, word in enumerate(first["words"]):
        word["confidence"] = 0.2 if i == 3 else 0.95
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        coverage = [
            {"kind": "words", "start": 0, "end": 9},
            {"kind": "unheard", "start": 9, "end": 12, "reason": "failed"},
            {"kind": "silence", "start": 12, "end": 30},
        ]
        made = stored(page, [first, second], hum(30), durationS=30, speakers={"A": "Maria"}, coverage=coverage)
        _open(page, made)
        expect(page.locator("#reader-coverage-list > li")).to_have_text(
            ["Words9 s", "Silence18 s", "Not heard: the model failed3 s0:09–0:12"]
        )
        assert page.locator(".speaker").all_inner_texts() == ["Maria", "Speaker B"]
        page.locator(".speaker").nth(1).click()
        page.keyboard.type("Ben")
        page.keyboard.press("Enter")
        expect(page.locator(".speaker").nth(1)).to_have_text("Ben")
        expect(page.locator(".line").nth(1).locator(".line-cut")).to_contain_text("cut off")
        assert _marked(page, "unsure") == []
        page.check("#reader-unsure")
        until(page, "() => CSS.highlights.get('unsure')?.size === 1")
        assert _marked(page, "unsure") == ["kitchen"]
        page.get_by_role("button", name=re.compile("Play from 0:09")).click()
        until(page, "() => (t => t >= 9 && t < 15)(document.querySelector('#reader video').currentTime)")
        row = rows_of(page, made)[0] | {"translation": "Schalte das Licht ein"}
        page.evaluate("async ([id, row]) => (await pageModule('store.js')).store.putRows(id, [row])", [made, row])
        expect(page.locator(".line-translation")).to_have_text("Schalte das Licht ein")
        until(
            page,
            """() => {
                const box = (selector) => document.querySelector(selector).getBoundingClientRect();
                return box(".line-translation").left >= box(".line-text").right;
            }""",
        )


@pytest.mark.nightly
def test_a_recording_that_cannot_be_played_still_has_its_text(browser, page_server):
    """The page says so, and the text takes the whole width."""
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        _open(page, stored(page, _two(), b"no sound" * 100))
        expect(page.locator("#reader-unplayable")).to_contain_text("cannot play")
        expect(page.locator("#reader-sound")).to_be_hidden()
        _expect_texts(page, [FIRST, SECOND])


def test_typing_is_stored_at_once(browser, page_server):
    """A page that is left a tenth of a second after a key has the text when it comes back."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        made = stored(page, _two())
        _open(page, made)
        page.locator(".line .edit").first.click()
        page.keyboard.type(" More.")
        page.wait_for_timeout(100)
        page.reload()
        expect(page.locator(".line-text").first).to_have_text(f"{FIRST} More.")


def test_a_line_that_two_tabs_edit_loses_neither_text(browser, page_server):
    """The tab whose text was overwritten keeps it in a message, and can put it back."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        made = stored(page, _two())
        _open(page, made)
        page.locator(".line .edit").first.click()
        page.keyboard.type(" Mine.")
        _wait_stored(page, made, [f"{FIRST} Mine.", SECOND])
        page.evaluate(
            """async id => {
                const { Store } = await pageModule('store.js');
                const other = new Store();  // as in another tab
                await other.open();
                const [row] = await other.rows(id);
                await other.putRows(id, [{ ...row, text: 'Theirs.', words: undefined }]);
            }""",
            made,
        )
        expect(page.locator(".line-text").first).to_have_text("Theirs.")
        toast = page.locator(".toast")
        expect(toast).to_contain_text(f"{FIRST} Mine.")
        toast.get_by_role("button", name="Use my text").click()
        expect(page.locator(".line-text").first).to_have_text(f"{FIRST} Mine.")
        _wait_stored(page, made, [f"{FIRST} Mine.", SECOND])


@pytest.mark.nightly
def test_rows_appear_while_they_are_written(browser, page_server):
    """Those of this tab and those of another one, without another touch; the state ends with the transcription."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        made = stored(page, _two()[:1], state="open")
        _open(page, made)
        expect(page.locator("#reader-state")).to_contain_text("Transcribing…")
        other = page.context.new_page()
        other.goto(page_server.base)
        put = """async ([id, start]) => {
            const { store } = await pageModule('store.js');
            await store.open();
            const row = { n: 1e6 + start, start, end: start + 1, text: `row at ${start}`, complete: true };
            await store.putRows(id, [row]);
        }"""
        page.evaluate(put, [made, 50])
        other.evaluate(put, [made, 40])
        expect(page.locator(".line-text")).to_have_text([FIRST, "row at 40", "row at 50"])
        page.evaluate("async id => (await pageModule('store.js')).store.update(id, { state: 'complete' })", made)
        expect(page.locator("#reader-state")).to_be_hidden()


@pytest.mark.nightly
def test_lines_become_paragraphs_where_the_transcript_is_complete(browser, page_server, tmp_path):
    """Up to a pause of 2 s, in the store too and with the times of all words; a document has the same."""
    lines = [words_of(FIRST), words_of(SECOND, start_s=8), words_of(FIRST, start_s=20)]
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        made = stored(page, lines, paragraphs=False)
        before = [word["start"] for row in rows_of(page, made) for word in row["words"]]
        _open(page, made)
        whole = [f"{FIRST} {SECOND}", FIRST]
        _wait_stored(page, made, whole)
        expect(page.locator("#reader-rows .line-text")).to_have_text(whole)
        assert [word["start"] for row in rows_of(page, made) for word in row["words"]] == before
        page.click("#reader-export")
        with page.expect_download() as download:
            page.get_by_role("button", name="Word (docx)").click()
        download.value.save_as(tmp_path / "talk.docx")
        shown = [one.text for one in docx.Document(tmp_path / "talk.docx").paragraphs]
        assert shown[-2:] == [f"0:00  {whole[0]}", f"0:20  {whole[1]}"]


@pytest.mark.nightly
def test_a_transcription_that_was_cut_off_looks_so(browser, page_server):
    """The tab that transcribed is closed: another tab and a reload say that it was cut off, with what can be done."""
    with opened(browser, page_server.base, "transcripts") as watched:
        page = watched.page
        working = page.context.new_page()
        working.goto(page_server.base)
        made = stored(working, _two()[:1], hum(30), state="open", title="broken off")
        item = page.locator(".library-item", has_text="broken off")
        expect(item).to_contain_text("Transcribing…")
        working.close()
        expect(item).to_contain_text("Incomplete")
        page.evaluate(
            "async () => (await pageModule('reader.js')).offer({ again: ({ title }) => { document.title = title; } })"
        )
        _open(page, made)
        expect(page.locator("#reader-state-text")).to_have_text(re.compile(r"Stopped at 0:07: the page was closed\."))
        page.locator("#reader-state").get_by_role("button", name="Transcribe again").click()
        assert page.title() == "broken off"
        page.evaluate(
            """async id => {
                const { store } = await pageModule('store.js');
                await store.update(id, { state: 'failed', error: { code: 'internal_error' } });
            }""",
            made,
        )
        expect(page.locator("#reader-state")).to_contain_text("The server failed")


_COUNT = "rows => document.querySelectorAll('.line').length === rows"
_AT_ONCE = """() => {
    const row = document.createElement("p");
    for (let i = 0; i < 20_000; i++) {
        const word = document.createElement("span");
        word.textContent = `word${i} `;
        row.append(word);
    }
    document.body.append(row);
    row.getBoundingClientRect();
    row.remove();
}"""
_STREAM = """async ({ segments, seconds }) => {
    const { store } = await pageModule("store.js");
    const { rowsOf } = await pageModule("transcript.js");
    const transcript = await store.create({ title: "long", state: "open", kind: "live" });
    const sound = new Blob([new Int16Array(20 * 16000).fill(1)]);
    for (let i = 0; i < seconds; i += 20) await store.appendSound(transcript.id, sound);
    location.hash = `#t/${transcript.id}`;
    let after = 0;
    for (const segment of segments) {
        const rows = rowsOf(segment, after);
        after = rows.at(-1).n;
        await store.putRows(transcript.id, rows);
        await new Promise((next) => setTimeout(next, 20));
    }
    await store.update(transcript.id, { state: "complete", durationS: seconds });
    return transcript.id;
}"""


def _longest_task(trace):
    """The most milliseconds that a task of the page has computed. By the clock, other work would count."""
    events = json.loads(trace)["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [e for e in events if "tdur" in e and e["name"].endswith("RunTask") and (e["pid"], e["tid"]) in mains]
    return round(max(task["tdur"] for task in tasks) / 1000)


def _longest_tasks(page, segments):
    """The longest task of each thing that one does with a transcript of these segments."""
    found = {}
    browser = page.context.browser

    def trace():
        browser.start_tracing(page=page, categories=["toplevel", "__metadata"])

    def note(name):
        page.wait_for_timeout(300)
        found[name] = _longest_task(browser.stop_tracing())
        trace()

    seconds = segments[-1]["end"] + 1
    # Making the segments into an argument of the page is not the page's work.
    page.evaluate("segments => { window.segments = segments; }", segments)
    trace()
    made = page.evaluate(f"(seconds) => ({_STREAM})({{ segments, seconds }})", seconds)
    until(page, "async id => (await (await pageModule('store.js')).store.get(id)).paragraphs", made)
    rows = page.evaluate("async id => (await (await pageModule('store.js')).store.rows(id)).length", made)
    until(page, _COUNT, rows)
    note("streaming")
    page.mouse.move(900, 400)
    for _ in range(30):
        page.mouse.wheel(0, 2500)
        page.wait_for_timeout(30)
    note("scrolling")
    page.reload()
    until(page, _COUNT, rows)
    note("opening")
    page.locator(".line .edit").nth(rows // 2).click()
    page.keyboard.type("and some more words ", delay=20)
    page.keyboard.press("Enter")
    page.keyboard.press("Backspace")
    page.keyboard.press("Escape")
    page.keyboard.press("ControlOrMeta+z")
    note("editing")
    page.keyboard.press("/")
    page.keyboard.type("the", delay=20)
    page.fill("#reader-replacement", "that")
    # Rows above may still take their heights, and the button its place.
    page.locator("#reader-replace-all").press("Enter")
    # Locators that look through all buttons would be a long task themselves.
    until(page, "() => document.querySelector('.toast .quiet') !== null")
    page.evaluate("document.querySelector('.toast .quiet').click()")
    page.wait_for_timeout(1000)
    note("replacing")
    page.keyboard.press("Escape")
    page.evaluate("s => { document.querySelector('#reader video').currentTime = s; }", seconds / 2)
    page.click("#reader .player-controls .round")
    page.wait_for_timeout(4000)
    note("playing")
    page.evaluate(_AT_ONCE)
    note("at once")
    browser.stop_tracing()
    return found


@pytest.mark.nightly
@pytest.mark.performance
@pytest.mark.timeout(900)
def test_no_long_task_for_20000_words(browser, page_server, capsys):
    """Nothing that one does computes for half as long at once as showing all these words at once would."""
    rounds = {}
    for _ in range(2):
        for words in (140, 20_000):
            segments = long_segments(words)
            for segment in segments:  # a tenth of the sound is enough
                segment["start"], segment["end"] = segment["start"] / 10, segment["end"] / 10
                for word in segment["words"]:
                    word["start"], word["end"] = word["start"] / 10, word["end"] / 10
            with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
                rounds.setdefault(words, []).append(_longest_tasks(watched.page, segments))
    with capsys.disabled():
        print("\nlongest tasks in ms of computing:", rounds)
    for round_ in rounds[20_000]:
        at_once = round_.pop("at once")
        assert all(longest < at_once / 2 for longest in round_.values()), rounds
