"""File: a recording becomes text beside a player, to jump in, correct, and take away; what is wrong is told."""

import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from E2Etest import recordings
from E2Etest.browser.conftest import PHONE, opened
from E2Etest.browser.cues import cues

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Two utterances far enough apart to be two spans.
PAUSE_S = 6


@pytest.fixture(scope="module")
def twice():
    """The bundled recording, a long pause, and the recording again."""
    spoken = recordings.samples()
    return recordings.wav(np.concatenate([spoken, np.zeros(16_000 * PAUSE_S, np.int16), spoken]))


def _give(page, content, name="talk.wav", media="audio/wav"):
    page.set_input_files("#file-input", {"name": name, "mimeType": media, "buffer": content})


def _done(page):
    expect(page.locator("#file-actions")).to_be_visible()
    return page.locator("#file-lines p").all_inner_texts()


def _time(page):
    return page.evaluate("document.getElementById('file-player').currentTime")


def _saved(page, ending, folder):
    with page.expect_download() as download:
        page.click(f"#file-{ending}")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_a_recording_becomes_text_that_one_can_jump_in(browser, page_server, twice, shots):
    """Each span is a line; a click on its time, or on a word, moves the player, which marks the line."""
    _, words = recordings.sample()
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        _give(page, twice)
        assert _done(page) == [words, words]
        times = page.locator("#file-lines .time")
        times.nth(1).click()
        expect(page.locator("#file-lines li").nth(1)).to_have_class(re.compile("now"))
        second = _time(page)
        assert 9 < second < 11
        page.locator("#file-lines li").nth(1).locator("span", has_text="music").click()
        expect(page.locator("#file-lines li").nth(1)).to_have_attribute("aria-current", "true")
        assert second + 1 < _time(page) < 14
        times.nth(0).click()
        expect(page.locator("#file-lines li").nth(0)).to_have_class(re.compile("now"))
        assert _time(page) < 1
        page.screenshot(path=shots / "file.png", full_page=True)


@pytest.mark.nightly
def test_subtitles_lie_over_a_video_and_can_be_taken_away(browser, page_server, shots, tmp_path):
    """The track that is shown and both files have the words; the JSON has the spans."""
    _, words = recordings.sample()
    with opened(browser, page_server.base, "files", viewport=PHONE) as watched:
        page = watched.page
        _give(page, recordings.talking_video(), "talk.webm", "video/webm")
        assert _done(page) == [words]
        shown = page.evaluate("[...document.getElementById('file-player').textTracks[0].cues].map(c => c.text)")
        assert " ".join(shown).replace("\n", " ") == words
        expect(page.locator("#file-player")).not_to_have_class(re.compile("sound-only"))
        page.locator("#file-lines .time").first.click()
        page.screenshot(path=shots / "file-video-phone.png", full_page=True)
        for ending in ("srt", "vtt"):
            path = _saved(page, ending, tmp_path)
            assert path.name == f"talk.{ending}"
            found = cues(path)
            assert " ".join(text for _, _, text in found) == words
            assert all(0 <= start < end < 5 for start, end, _ in found)
        assert _saved(page, "txt", tmp_path).read_text(encoding="utf-8") == f"{words}\n"
        body = json.loads(_saved(page, "json", tmp_path).read_text(encoding="utf-8"))
        assert (body["text"], body["language"], len(body["segments"])) == (words, "English", 1)


def test_a_corrected_line_is_what_is_shown_and_taken_away(browser, page_server, sample, tmp_path):
    """Enter keeps, Escape does not; with the keyboard alone; the subtitles follow."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        _give(page, sample[0])
        _done(page)
        page.focus("#file-lines .edit")
        page.keyboard.press("Enter")
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type("Something <else> & more")
        page.keyboard.press("Enter")
        expect(page.locator("#file-lines p")).to_have_text("Something <else> & more")
        expect(page.locator("#file-lines .edit")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.type("not this")
        page.keyboard.press("Escape")
        expect(page.locator("#file-lines p")).to_have_text("Something <else> & more")
        # A word joiner, which is not shown, keeps SubRip from reading markup.
        assert cues(_saved(page, "srt", tmp_path))[0][2] == "Something <\u2060else> & more"
        assert "Something &lt;else&gt; &amp; more" in _saved(page, "vtt", tmp_path).read_text(encoding="utf-8")
        shown = page.evaluate("document.getElementById('file-player').textTracks[0].cues[0].getCueAsHTML().textContent")
        assert shown == "Something <else> & more"


@pytest.mark.nightly
@pytest.mark.parametrize("how", [{"isComposing": True}, {"keyCode": 229}], ids=["composing", "safari"])
@pytest.mark.parametrize("key", ["Enter", "Escape"])
def test_keys_of_an_input_method_do_not_end_a_correction(browser, page_server, sample, key, how):
    """Enter takes a composed word and Escape drops it; the line is not theirs."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        _give(page, sample[0])
        _done(page)
        page.click("#file-lines .edit")
        page.locator("#file-lines textarea").dispatch_event("keydown", {"key": key, **how})
        expect(page.locator("#file-lines textarea")).to_be_visible()


@pytest.mark.nightly
def test_a_dropped_file_is_taken_also_beside_the_field(browser, page_server, sample):
    """The whole page takes it: a file that misses the field would otherwise replace the page."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        page.evaluate(
            """bytes => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], "dropped.wav", { type: "audio/wav" }));
                const options = { dataTransfer: data, bubbles: true, cancelable: true };
                document.body.dispatchEvent(new DragEvent("drop", options));
            }""",
            list(sample[0]),
        )
        assert _done(page) == [sample[1]]
        assert page.inner_text("#file-name") == "dropped.wav"


@pytest.mark.nightly
def test_of_several_files_the_first_is_taken_and_the_others_are_reported(browser, page_server, sample):
    """What is left out in silence would be missed much later."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        assert _drop(page, "document.body", [list(sample[0])] * 2)
        assert _done(page) == [sample[1]]
        assert page.inner_text("#file-name") == "0.wav"
        expect(page.locator("#files-notice")).to_have_text(re.compile("One recording at a time"))


@pytest.mark.nightly
def test_text_can_be_dragged_into_a_field(browser, page_server):
    """Only what would replace the page is caught."""
    with opened(browser, page_server.base, "files") as watched:
        assert not _drop(watched.page, "document.getElementById('file-hotwords')", [])
        assert _drop(watched.page, "document.body", [])


def _drop(page, target, contents):
    """Drop files with these bytes, or text; whether the page has taken it upon itself."""
    return page.evaluate(
        f"""contents => {{
            const data = new DataTransfer();
            contents.forEach((bytes, i) => data.items.add(new File([new Uint8Array(bytes)], `${{i}}.wav`)));
            if (!contents.length) data.items.add("words", "text/plain");
            const options = {{ dataTransfer: data, bubbles: true, cancelable: true }};
            return !{target}.dispatchEvent(new DragEvent("drop", options));
        }}""",
        contents,
    )


@pytest.mark.nightly
def test_a_file_that_is_gone_is_reported_as_that(browser, page_server, sample, tmp_path):
    """Changed, removed, or a folder that was dropped: the server has nothing to do with it."""
    path = tmp_path / "talk.wav"
    path.write_bytes(sample[0])
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["Failed to load resource", "ERR_"]
        page = watched.page
        page.set_input_files("#file-input", path)
        _done(page)
        path.unlink()
        page.click("#file-again")
        expect(page.locator("#files-notice")).to_have_text(re.compile("The file cannot be read"))


@pytest.mark.nightly
def test_a_button_that_was_pressed_twice_has_its_name_back(browser, page_server, sample):
    """The second answer must not be taken for the name."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        _give(page, sample[0])
        _done(page)
        page.click("#file-copy")
        expect(page.locator("#file-copy")).not_to_have_text("Copy")
        page.click("#file-copy")
        page.wait_for_timeout(2000)
        expect(page.locator("#file-copy")).to_have_text("Copy", timeout=1000)


def _nightly(name, *values):
    return pytest.param(*values, id=name, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(lambda: b"no sound at all" * 100, "no sound that the server can read", id="damaged"),
        _nightly("empty", lambda: b"", "The file is empty"),
        _nightly("no-track", recordings.silent_video, "video has no sound"),
        _nightly("silence", lambda: recordings.wav(np.zeros(32_000, np.int16)), "No speech was found"),
        _nightly("too-large", lambda: recordings.wav(np.zeros(3_000_000, np.int16)), "too large|larger than it takes"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported(browser, page_server, content, said):
    """In words, in a place that is read out, and the page goes on."""
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        _give(page, content())
        expect(page.locator("#files-notice")).to_have_text(re.compile(said))
        expect(page.locator("#file-busy")).to_be_hidden()
        expect(page.locator("#file-again")).to_be_visible()
        expect(page.locator("#file-sheet")).to_be_hidden()
        expect(page.locator("#file-unplayable")).to_be_hidden()


@pytest.mark.nightly
def test_what_the_server_says_is_reported_once(browser, page_server):
    """Its own sentence is added where it holds a number, and nowhere else."""
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        _give(page, b"no sound at all" * 100)
        expect(page.locator("#files-notice")).to_have_text(
            "This file has no sound that the server can read, or it is damaged."
        )
        _give(page, recordings.wav(np.zeros(100, np.int16)))
        expect(page.locator("#files-notice")).to_have_text(re.compile("too short to hold a word.*0.1 s"))


@pytest.mark.nightly
def test_what_the_browser_cannot_play_is_transcribed_all_the_same(browser, page_server, sample):
    """The server knows more formats than browsers do."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        _give(page, recordings.encoded("aiff", "pcm_s16be"), "talk.aiff", "audio/aiff")
        assert _done(page) == [sample[1]]
        expect(page.locator("#file-unplayable")).to_have_text(re.compile("cannot play"))
        expect(page.locator("#file-player")).to_be_hidden()


@pytest.mark.nightly
def test_a_wrong_key_is_reported_as_that(browser, page_server, sample):
    """Whatever a server or a proxy says with 401; a server with keys is not needed for it."""
    refusal = json.dumps({"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "x"}})
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["401"]
        page = watched.page
        seen = []

        def refuse(route):
            seen.append(route.request.headers.get("authorization"))
            route.fulfill(status=401, body=refusal)

        page.route("**/v1/audio/**", refuse)
        page.click("#settings-open")
        page.fill("#key-field", "wrong")
        page.keyboard.press("Enter")
        _give(page, sample[0])
        expect(page.locator("#files-notice")).to_have_text(re.compile("key is missing or wrong"))
        assert seen == ["Bearer wrong"]


@pytest.mark.nightly
def test_what_the_server_cannot_do_is_not_offered(browser, page_server):
    """Word times and translation have controls only where the server has them."""
    health = page_server.health()
    active = {option["name"] for option in health["plan"] if option["active"]}
    words, translates = "aligner" in active, "translation" in active
    assert "/v1/audio/translations" in page_server.client.get("/openapi.json").json()["paths"]
    with opened(browser, page_server.base) as watched:
        page = watched.page
        with page.expect_response("**/openapi.json"):
            page.click("#tab-files")
        expect(page.locator("#file-words-field")).to_be_visible(visible=words)
        expect(page.locator("#file-target-field")).to_be_visible(visible=translates)


@pytest.mark.nightly
def test_known_word_times_mark_the_word(browser, page_server, sample):
    """An answer with words: the word that is said now is marked."""
    text = sample[1]
    times = [(word, 0.2 + 0.3 * i, 0.5 + 0.3 * i) for i, word in enumerate(text.split())]
    body = {
        "text": text,
        "language": "english",
        "duration": 4.0,
        "segments": [{"id": 0, "start": 0.1, "end": 3.9, "text": text}],
        "words": [{"word": word, "start": start, "end": end} for word, start, end in times],
    }
    with opened(browser, page_server.base) as watched:
        page = watched.page
        page.route("**/v1/audio/transcriptions", lambda route: route.fulfill(json=body))
        page.click("#tab-files")
        page.check("#file-words")
        _give(page, sample[0])
        assert _done(page) == [text]
        page.locator("#file-lines span", has_text="kitchen").click()
        expect(page.locator("#file-lines span.now")).to_have_text(re.compile("^kitchen"))
        assert _time(page) == pytest.approx(0.2 + 0.3 * text.split().index("kitchen"), abs=0.01)


@pytest.mark.nightly
def test_a_translation_is_asked_for_and_shown(browser, page_server, sample):
    """Where the server has an endpoint for it: the target is sent, and the answer's lines are shown."""
    segments = [{"id": 0, "start": 0.1, "end": 3.9, "text": "hallo schalte das Licht ein"}]
    body = {"text": segments[0]["text"], "language": "german", "duration": 4.0, "segments": segments}
    sent = []

    def answer(route):
        sent.append(route.request.post_data_buffer)
        route.fulfill(json=body)

    with opened(browser, page_server.base) as watched:
        page = watched.page
        health = page_server.health()
        (option,) = [option for option in health["plan"] if option["name"] == "translation"]
        option["active"] = True
        page.route("**/health", lambda route: route.fulfill(json=health))
        page.route("**/v1/audio/translations", answer)
        page.click("#tab-files")
        page.select_option("#file-target", "German")
        _give(page, sample[0])
        assert _done(page) == ["hallo schalte das Licht ein"]
        expect(page.locator("#file-summary")).to_contain_text("German")
    assert re.search(rb'name="language"\r\n\r\nGerman\r\n', sent[0])
