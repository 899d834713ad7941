"""Files: recordings become transcripts, several in turn; nothing is lost on the way, and what is wrong is told."""

import io
import json
import re
import zipfile

import av
import docx
import numpy as np
import pytest
from playwright.sync_api import expect

from asr_server.engine.fake_script import FakeScript
from E2Etest import recordings
from E2Etest.browser.conftest import opened
from E2Etest.browser.cues import cues
from E2Etest.browser.looking import looked_at
from E2Etest.browser.storing import kept

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SLOW = FakeScript(step_s=0.15)


def _file(name, content, media="audio/wav"):
    return {"name": name, "mimeType": media, "buffer": content}


def _give(page, *files):
    page.set_input_files("#files-input", list(files))


def _items(page):
    return page.locator("#files-queue li")


def _stored(page):
    """Oldest first."""
    return kept(page)[::-1]


def _text(transcript):
    return " ".join(row["text"] for row in transcript["rows"])


def _until(page, condition):
    """Wait until the condition holds for what is stored, and return that."""
    for _ in range(600):
        found = _stored(page)
        if condition(found):
            return found
        page.wait_for_timeout(100)
    raise AssertionError(found)


@pytest.fixture(scope="module")
def one_by_one(start):
    """A server that takes one span after the other."""
    with start(MAX_BATCH="1", PRELOAD="true") as server:
        server.wait_for(lambda health: health["model_loaded"])
        yield server


@pytest.fixture
def slow(one_by_one):
    """The server takes some seconds for each span of the sample."""
    one_by_one.replace_script(SLOW)
    yield one_by_one
    one_by_one.replace_script(FakeScript())


@pytest.fixture(scope="module")
def three():
    """The sample three times with pauses that end spans."""
    pause = np.zeros(6 * 16_000, np.int16)
    return recordings.wav(np.concatenate([recordings.samples(), pause] * 3))


@pytest.mark.nightly
def test_several_files_become_transcripts_and_a_zip(browser, page_server, sample, shots, tmp_path):
    """Each with its text, word times and sound in the store; what is wrong with one is told beside it."""
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        expect(page.locator("#files-limits")).to_have_text(re.compile("4 MB and 2 hours"))
        _give(page, _file("one.wav", sample[0]), _file("bad.wav", b"no sound" * 100), _file("two.wav", sample[0]))
        expect(_items(page)).to_have_count(3)
        expect(page.locator("#files-summary")).to_have_text("2 of 3 files finished · 1 failed")
        expect(_items(page).nth(1)).to_contain_text("isn't an audio or video file")
        page.screenshot(path=shots / "files.png", full_page=True)
        expect(_items(page).nth(1).get_by_role("link")).to_have_count(0)  # it has no transcript
        one, two = _stored(page)
        for transcript in (one, two):
            assert (_text(transcript), transcript["state"]) == (sample[1], "complete")
            assert transcript["sound"] == len(sample[0])
            words = transcript["rows"][0]["words"]
            assert "".join(word["text"] for word in words) == sample[1]
            assert all(0 < word["confidence"] <= 1 for word in words)
        assert (one["title"], one["language"], one["languageCode"]) == ("one", "English", "en")
        with page.expect_download() as download:
            page.click("#files-zip")
        download.value.save_as(tmp_path / "all.zip")
        with zipfile.ZipFile(tmp_path / "all.zip") as archive:
            assert archive.testzip() is None
            assert archive.read("one/one.txt").decode().strip() == sample[1]
            assert {name.split("/")[0] for name in archive.namelist()} == {"one", "two"}


@pytest.mark.nightly
def test_a_file_alone_is_shown_while_it_is_transcribed(browser, slow, three, shots):
    """Its reader opens at once, with player, and the first words are there before the last."""
    with opened(browser, slow.base, "files") as watched:
        page = watched.page
        _estimating(page, slow)
        _give(page, _file("talk.wav", three))
        expect(page).to_have_url(re.compile("#t/"))
        expect(page.locator("#reader-sound")).to_be_visible()
        expect(page.locator("#reader-progress")).to_be_visible()
        expect(page.locator("#reader-cancel")).to_be_visible()
        expect(page.locator("#reader-rows")).to_contain_text("kitchen")
        expect(page.locator("#reader-state-text")).to_have_text(
            re.compile(r"Transcribing, 0:0\d of 0:\d\d · about \d+ \w+ left")
        )
        assert float(page.locator("#reader-progress").get_attribute("value")) > 0.1
        assert looked_at(page, shots, "reader-progress") == []
        assert len(_stored(page)[0]["rows"]) < 3
        _until(page, lambda found: found[0]["state"] == "complete" and len(found[0]["rows"]) >= 3)


def _estimating(page, server):
    """The page finds no aligner, which would wait until the spans are transcribed."""
    health = server.health()
    for option in health["plan"]:
        option["active"] &= option["name"] != "aligner"
    page.route("**/health", lambda route: route.fulfill(json=health))


def _drop(page, target, contents):
    """Drop files with these bytes, or text; whether the page has taken it upon itself."""
    return page.evaluate(
        f"""contents => {{
            const data = new DataTransfer();
            contents.forEach((bytes, i) => data.items.add(new File([new Uint8Array(bytes)], `${{i}}.wav`)));
            if (!contents.length) data.items.add("words", "text/plain");
            const options = {{ dataTransfer: data, bubbles: true, cancelable: true }};
            {target}.dispatchEvent(new DragEvent("dragenter", options));
            return !{target}.dispatchEvent(new DragEvent("drop", options));
        }}""",
        contents,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("panel", ["live", "files", "transcripts", "status"])
def test_files_are_taken_wherever_they_are_dropped(browser, page_server, sample, panel):
    """On every panel; text is left to the field that it is dragged into."""
    with opened(browser, page_server.base, panel) as watched:
        page = watched.page
        page.wait_for_timeout(500)
        assert not _drop(page, "document.getElementById('files-hotwords')", [])
        assert _drop(page, "document.body", [list(sample[0])] * 2)
        expect(page.locator("#files-summary")).to_have_text("2 of 2 files finished")
        expect(page.locator("#files-over")).to_be_hidden()
        assert [_text(transcript) for transcript in _stored(page)] == [sample[1]] * 2


@pytest.mark.nightly
def test_a_reload_loses_no_row_and_no_file(browser, slow, three, sample):
    """Rows that had come are there, and the rest follows them from the stored sound."""
    with opened(browser, slow.base, "files") as watched:
        watched.allowed += ["Failed to load resource", "ERR_"]
        page = watched.page
        _estimating(page, slow)
        _give(page, _file("talk.wav", three), _file("next.wav", sample[0]), _file("last.wav", sample[0]))
        _until(page, lambda found: found[0]["rows"] and all(transcript["sound"] for transcript in found))
        page.reload()
        talk, *_ = _until(page, lambda found: all(t["state"] in ("cut", "complete") for t in found))
        assert (talk["state"], talk["sound"]) == ("cut", len(three))
        assert sample[1].startswith(_text(talk)[:20])
        slow.replace_script(FakeScript())
        expect(page.locator("#files-interrupted-text")).to_have_text(re.compile("when the page was closed"))
        page.click("#files-continue")
        expect(page.locator("#files-summary")).to_have_text(re.compile(r"(\d) of \1 files? finished"))
        found = _stored(page)
        assert found[0]["id"] == talk["id"]
        assert found[0]["rows"][: len(talk["rows"])] == talk["rows"]
        assert [(t["state"], _text(t)) for t in found] == [
            ("complete", " ".join([sample[1]] * 3)),
            *[("complete", sample[1])] * 2,
        ]
        expect(page.locator("#files-interrupted")).to_be_hidden()


@pytest.mark.nightly
def test_edits_outlive_another_file_and_another_transcription(browser, page_server, sample):
    """“Transcribe again” makes a new transcript; the corrected one stays as it is."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        _give(page, _file("talk.wav", sample[0]))
        _until(page, lambda found: found and found[0]["state"] == "complete")
        page.evaluate(
            """async () => {
                const { store } = await pageModule("store.js");
                const [{ id }] = await store.list();
                const [row] = await store.rows(id);
                await store.putRows(id, [{ ...row, text: "corrected", words: undefined }]);
                await store.update(id, { state: "cut" });
            }"""
        )
        page.click("#reader-again")
        expect(page.locator("#reader-rows")).to_contain_text("kitchen")
        page.goto(f"{page_server.base}/#files")
        _give(page, _file("talk.wav", sample[0]))
        found = _until(page, lambda all_: len(all_) == 3 and all_[2]["state"] == "complete")
        assert [_text(transcript) for transcript in found] == ["corrected", sample[1], sample[1]]
        assert found[1]["sound"] == len(sample[0])


@pytest.mark.nightly
def test_a_server_without_room_is_asked_again(browser, page_server, sample):
    """After as many seconds as it said; until then the file waits, and so does the next."""
    refusal = json.dumps({"error": {"message": "no", "type": "x", "param": None, "code": "rate_limit_exceeded"}})
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["429"]
        page = watched.page
        asked = []

        def refuse(route):
            asked.append(page.evaluate("performance.now()"))
            if len(asked) <= 2:
                route.fulfill(status=429, body=refusal, headers={"Retry-After": "3"})
            else:
                route.continue_()

        page.route("**/v1/audio/transcriptions/stream", refuse)
        _give(page, *(_file(f"{n}.wav", sample[0]) for n in range(3)))
        expect(_items(page).nth(0)).to_contain_text("The server is busy, next try in")
        expect(page.locator("#files-summary")).to_have_text("3 of 3 files finished")
        assert len(asked) == 5
        assert asked[2] - asked[0] >= 2900


@pytest.mark.nightly
def test_a_file_is_cancelled_and_tried_again(browser, slow, three, sample):
    """Cancelling ends the request; a second try continues where there were words."""
    with opened(browser, slow.base, "files") as watched:
        watched.allowed += ["ERR_"]
        page = watched.page
        _estimating(page, slow)
        _give(page, _file("talk.wav", three), _file("b.wav", sample[0]), _file("c.wav", three))
        page.get_by_role("button", name="Cancel c.wav").click()
        _until(page, lambda found: found[0]["rows"])
        page.get_by_role("button", name="Cancel talk.wav").click()
        expect(_items(page).nth(0)).to_contain_text("Cancelled")
        expect(_items(page).nth(2)).to_contain_text("Cancelled")
        talk, _ = _until(page, lambda found: len(found) == 2 and found[0]["state"] == "cut")
        assert talk["error"]["code"] == "cancelled"
        slow.wait_for(lambda health: health["queue"]["running"] == 0)
        slow.replace_script(FakeScript())
        page.get_by_role("button", name="Transcribe talk.wav again").click()
        expect(_items(page).nth(0)).to_contain_text("Finished")
        found = _stored(page)
        (again,) = [t for t in found if t["title"] == "talk"]
        assert (again["id"], again["state"], len(again["rows"])) == (talk["id"], "complete", 3)
        page.click("#files-clear")
        expect(page.locator("#files-work")).to_be_hidden()
        assert len(_stored(page)) == len(found)


@pytest.mark.nightly
def test_a_file_that_is_too_large_is_not_sent(browser, page_server):
    """The limit is shown before, and known: nothing is uploaded."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        sent = []
        page.on("request", lambda request: sent.append(request.url) if "/v1/audio" in request.url else None)
        _give(page, *[_file("long.wav", recordings.wav(np.zeros(3_000_000, np.int16)))] * 2)
        expect(_items(page).nth(1)).to_contain_text("too large for this server. The server takes 4 MB at most.")
        assert sent == []


def _noise_with_speech():
    """A video of more than 20 MB in which the sample is said."""
    sink, chance = io.BytesIO(), np.random.default_rng(2)
    with av.open(sink, "w", format="mp4") as out:
        video = out.add_stream("mjpeg", rate=5, width=1280, height=720, pix_fmt="yuvj420p")
        video.bit_rate = 80_000_000
        sound = out.add_stream("aac", rate=16_000, layout="mono")
        for _ in range(30):
            noise = chance.integers(0, 255, (720, 1280, 3), np.uint8)
            out.mux(video.encode(av.VideoFrame.from_ndarray(noise, format="rgb24").reformat(format="yuvj420p")))
        for at in range(0, len(recordings.samples()), 1024):
            samples = recordings.samples()[at : at + 1024].astype(np.float32)[None] / 32_768
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16_000, at
            out.mux(sound.encode(frame))
        out.mux(video.encode(None))
        out.mux(sound.encode(None))
    return sink.getvalue()


@pytest.mark.nightly
def test_of_a_large_video_the_sound_is_sent(browser, page_server, sample, tmp_path):
    """A video beyond the limit of the server has its words; the whole video is stored, to be played."""
    path = tmp_path / "film.mp4"
    path.write_bytes(_noise_with_speech())
    size = path.stat().st_size
    assert size > 20 * 1024 * 1024
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        page.set_input_files("#files-input", path)
        (film,) = _until(page, lambda found: found and found[0]["state"] != "open")
        assert (film["state"], _text(film), film["sound"]) == ("complete", sample[1], size)


def _translating(page, server, answer):
    """The page believes in an endpoint, whose answers are these."""
    health = server.health()
    for option in health["plan"]:
        option["active"] |= option["name"] == "translation"
    page.route("**/health", lambda route: route.fulfill(json=health))
    page.route("**/v1/text/translations", answer)
    page.reload()
    page.select_option("#files-target", "de")


@pytest.mark.nightly
def test_a_translation_stands_beside_the_text(browser, page_server, sample):
    """The rows are translated when they are there, and exported in both languages."""
    sent = []

    def answer(route):
        sent.append(route.request.post_data_json)
        texts = [f"<{text}>" for text in sent[-1]["texts"]]
        route.fulfill(json={"translations": texts, "reasons": [""] * len(texts), "untranslated": 0})

    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        _translating(page, page_server, answer)
        _give(page, _file("talk.wav", sample[0]))
        (talk,) = _until(page, lambda found: found and found[0]["rows"] and "translation" in found[0]["rows"][0])
        assert talk["rows"][0]["translation"] == f"<{sample[1]}>"
        assert (sent[0]["target_language"], sent[0]["texts"]) == ("de", [sample[1]])
        page.click("#reader-export")
        with page.expect_download() as download:
            page.get_by_role("button", name="Text (txt)").click()
        assert download.value.path().read_text(encoding="utf-8") == f"{sample[1]}\n<{sample[1]}>\n"


@pytest.mark.nightly
def test_a_failed_translation_leaves_the_transcription(browser, page_server, sample):
    """The text is complete and shown; the failure is told beside the file."""
    error = {"error": {"message": "no", "type": "server_error", "param": None, "code": "translation_failed"}}
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["502"]
        page = watched.page
        _translating(page, page_server, lambda route: route.fulfill(status=502, json=error))
        _give(page, *[_file("talk.wav", sample[0])] * 2)
        expect(_items(page).nth(0)).to_contain_text("The translation failed.")
        expect(page.locator("#files-summary")).to_have_text("2 of 2 files finished")
        assert {(transcript["state"], _text(transcript)) for transcript in _stored(page)} == {("complete", sample[1])}


def _event(**content):
    return f"data: {json.dumps(content)}\n\n"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("complete-false", "Words may be missing in parts of this transcript."),
        ("no-end", "Stopped at 0:01. The connection broke before the end."),
        (
            "engine_out_of_memory",
            "Stopped at 0:01. The server ran out of memory on this recording. Try again in a moment. no",
        ),
        ("deadline_exceeded", "Stopped at 0:01: the server's time limit (5 min) was reached."),
    ],
)
def test_a_text_that_was_cut_off_says_so(browser, page_server, sample, end, said):
    """Where, and whether the model ran out of tokens, the connection broke, or the server failed in the middle."""
    span = {"text": "turn on", "language": "English", "is_final": False, "chunk_index": 0, "start": 0.5, "end": 1.5}
    body = _event(**span, complete=end != "complete-false")
    if end == "complete-false":
        body += _event(**span | {"is_final": True, "end": 4.0}, complete=False) + _event(done=True)
    if "_" in end:
        body += _event(error={"message": "no", "type": "server_error", "param": None, "code": end})
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        page.route("**/transcriptions/stream", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
        _give(page, _file("talk.wav", sample[0]))
        (talk,) = _until(page, lambda found: found and found[0]["state"] != "open")
        assert (talk["state"], _text(talk)) == ("cut", "turn on")
        expect(page.locator("#files-interrupted")).to_be_hidden()
        expect(page.locator("#reader-state-text")).to_have_text(said)
        expect(page.locator("#reader-resume")).to_be_visible(visible=end != "complete-false")
        page.click("#reader-export")
        with page.expect_download() as download:
            page.get_by_role("button", name="Text (txt)").click()
        assert "cut off" in download.value.path().read_text(encoding="utf-8")


@pytest.mark.nightly
def test_what_became_of_a_file_is_shown_also_where_it_cannot_be_played(browser, page_server):
    """The parts of the whole recording, as the server has sent them, and places that were not heard."""
    coverage = [
        {"kind": "unheard", "start": 0, "end": 1.5, "reason": "detector"},
        {"kind": "words", "start": 1.5, "end": 2},
        {"kind": "silence", "start": 2, "end": 4, "confidence": 0.9},
    ]
    span = {"language": "English", "is_final": False, "complete": True}
    body = _event(**span, text="turn on", chunk_index=0, start=1.5, end=2.0)
    body += _event(**span | {"is_final": True}, text="turn on", start=0, end=4.0, coverage={"parts": coverage})
    body += _event(done=True)
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        page.route("**/transcriptions/stream", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
        _give(page, _file("talk.wav", b"no sound" * 100))
        _until(page, lambda found: found and found[0]["state"] == "complete")
        expect(page.locator("#reader-sound")).to_be_hidden()
        expect(page.locator("#reader-coverage-list > li").last).to_have_text(
            "Not heard: as loud as speech, but not taken for speech1.5 s0:00–0:01"
        )
        assert page.locator("#reader-coverage-bar .unheard").get_attribute("d") == "M0 0H1.5V1H0Z"


@pytest.mark.nightly
def test_every_format_is_saved_from_the_menu(browser, page_server, sample, tmp_path):
    """The menu works with the keyboard, and each file is what its name says."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        _give(page, _file("talk.wav", sample[0]))
        _until(page, lambda found: found and found[0]["state"] == "complete")
        files = {}
        page.focus("#reader-export")
        for at in range(8):
            page.keyboard.press("Enter")
            expect(page.get_by_role("button", name="Copy", exact=True)).to_be_focused()
            for _ in range(2 + at):
                page.keyboard.press("ArrowDown")
            with page.expect_download() as download:
                page.keyboard.press("Enter")
            download.value.save_as(tmp_path / download.value.suggested_filename)
            files[download.value.suggested_filename] = tmp_path / download.value.suggested_filename
            page.focus("#reader-export")
        endings = ("txt", "times.txt", "srt", "vtt", "docx", "md", "csv", "json")
        assert set(files) == {f"talk.{ending}" for ending in endings}
        for ending in ("srt", "vtt"):
            assert " ".join(text for _, _, text in cues(files[f"talk.{ending}"])) == sample[1]
        body = json.loads(files["talk.json"].read_text(encoding="utf-8"))
        assert (body["text"], body["language"]) == (sample[1], "English")
        assert sample[1] in docx.Document(files["talk.docx"]).paragraphs[-1].text
        assert sample[1] in files["talk.md"].read_text(encoding="utf-8")


@pytest.mark.nightly
def test_a_file_that_is_gone_is_reported_as_that(browser, page_server, sample, tmp_path):
    """Changed or removed: the server has nothing to do with it."""
    path = tmp_path / "talk.wav"
    path.write_bytes(sample[0])
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["Failed to load resource", "ERR_"]
        page = watched.page
        page.route("**/transcriptions/stream", lambda route: (path.unlink(missing_ok=True), route.continue_()))
        page.set_input_files("#files-input", path)
        page.goto(f"{page_server.base}/#files")
        expect(_items(page).nth(0)).to_contain_text("The file cannot be read")


def _nightly(name, *values):
    return pytest.param(*values, id=name, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        _nightly("empty", lambda: b"", "The file is empty"),
        _nightly("no-track", recordings.silent_video, "video has no sound"),
        _nightly("silence", lambda: recordings.wav(np.zeros(32_000, np.int16)), "No speech was found"),
        _nightly("short", lambda: recordings.wav(np.zeros(100, np.int16)), "too short to hold a word.*0.1 s"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported(browser, page_server, content, said):
    """In words, beside the file, and the queue goes on."""
    with opened(browser, page_server.base, "files") as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        _give(page, _file("a.wav", content()), _file("b.wav", recordings.sample()[0]))
        expect(_items(page).nth(0)).to_contain_text(re.compile(said))
        expect(_items(page).nth(1)).to_contain_text("Finished")


@pytest.mark.nightly
def test_a_wrong_key_is_reported_as_that(browser, guarded, sample):
    """And a retry with the right key succeeds."""
    with opened(browser, guarded.base, "files") as watched:
        watched.allowed += ["401"]
        page = watched.page
        _give(page, *[_file("a.wav", sample[0])] * 2)
        expect(_items(page).nth(0)).to_contain_text("key is missing or wrong")
        page.click("#settings-open")
        page.fill("#key-field", "sk-canary-first")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Transcribe a.wav again").first.click()
        expect(_items(page).nth(0)).to_contain_text("Finished")
