"""Speak: a text is read aloud by a real voice, sentence by sentence, or made into a file."""

import json
import re

import pytest
from playwright.sync_api import expect

from E2Etest.browser.conftest import opened
from E2Etest.browser.storing import stored, until, words_of
from E2Etest.process import running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SENTENCES = ["The first sentence is here.", "The second one 😀 follows it.", "A third paragraph ends the text."]
TEXT = f"{SENTENCES[0]} {SENTENCES[1]}\n\n{SENTENCES[2]}"
STREAM = "**/v1/audio/speech/stream"
FAILURE = {"error": {"message": "Broken.", "type": "server_error", "param": None, "code": "speech_failed"}}


def _given(page, text=TEXT):
    page.fill("#speak-text", text)
    expect(page.locator("#speak-read")).to_be_enabled()


def _now(page):
    return page.locator("#speak-sheet [aria-current]")


def _asked(page):
    """The bodies of the requests for sentences from now on."""
    bodies = []
    page.on("request", lambda one: bodies.append(json.loads(one.post_data)) if one.url.endswith("stream") else None)
    return bodies


def _read_button(page):
    return page.locator("#speak-read")


def test_a_text_is_read_and_the_spoken_sentence_is_marked(browser, page_server):
    """One after the other, until it is stopped; then the text can be edited again."""
    with opened(browser, page_server.base, "speak") as watched:
        page = watched.page
        expect(_read_button(page)).to_be_disabled()
        expect(page.locator("#speak-voice")).to_have_value("alloy")
        _given(page)
        expect(page.locator("#speak-count")).to_have_text(re.compile(f"{len(TEXT)} of 20,000"))
        _read_button(page).click()
        for sentence in SENTENCES[:2]:
            expect(_now(page)).to_have_text(sentence)
        page.click("#speak-stop")
        expect(page.locator("#speak-text")).to_have_value(TEXT)
        expect(page.locator("#speak-sheet")).to_be_hidden()
        expect(_read_button(page)).to_be_focused()


@pytest.mark.nightly
def test_reading_goes_to_the_end_and_begins_again(browser, page_server):
    """A read text is a text again, also if the keyboard was in it."""
    with opened(browser, page_server.base, "speak") as watched:
        page = watched.page
        page.select_option("#speak-speed", "2")
        _given(page)
        for _ in range(2):
            _read_button(page).click()
            for sentence in SENTENCES:
                expect(_now(page)).to_have_text(sentence)
            expect(page.locator("#speak-text")).to_be_visible()


@pytest.mark.nightly
def test_the_keyboard_chooses_a_sentence_and_a_click_does(browser, page_server):
    """Reading goes on there, with a request for what is left."""
    with opened(browser, page_server.base, "speak") as watched:
        page = watched.page
        bodies = _asked(page)
        _given(page)
        _read_button(page).press("Enter")
        expect(_now(page)).to_have_text(SENTENCES[0])
        page.locator("#speak-sheet .spoken").first.focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowDown")
        expect(page.locator("#speak-sheet .spoken").last).to_be_focused()
        page.keyboard.press("Enter")
        expect(_now(page)).to_have_text(SENTENCES[2])
        page.locator("#speak-sheet .spoken", has_text="second").click()
        expect(_now(page)).to_have_text(SENTENCES[1])
        assert [body["input"] for body in bodies] == [TEXT, SENTENCES[2], TEXT[TEXT.index("The second") :]]


@pytest.mark.nightly
def test_a_pause_keeps_the_sentence_and_another_panel_is_one(browser, page_server):
    """Nothing is read on while it lasts."""
    with opened(browser, page_server.base, "speak") as watched:
        page = watched.page
        _given(page)
        _read_button(page).click()
        expect(_now(page)).to_have_text(SENTENCES[0])
        _read_button(page).click()
        expect(page.locator("#speak-state")).to_have_text("Paused")
        page.wait_for_timeout(4000)  # longer than the sentence
        expect(_now(page)).to_have_text(SENTENCES[0])
        _read_button(page).click()
        expect(_now(page)).to_have_text(SENTENCES[1])
        page.click("#tab-files")
        page.click("#tab-speak")
        expect(page.locator("#speak-state")).to_have_text("Paused")


def test_each_voice_is_offered_once_and_sentences_are_the_servers(browser, page_server):
    """By its own name, with frequent languages first; an abbreviation does not end the sentence that is read."""
    names = ["alloy", "nova"]
    voice = {"id": "joe", "description": "a man", "languages": ["af", "en", "qya"], "alias_of": None}
    listed = [*(voice | {"id": name, "alias_of": "joe"} for name in names), voice, voice | {"id": "m1"}]
    with opened(browser, page_server.base, "speak") as watched:
        page = watched.page
        page.route("**/v1/audio/voices", lambda route: route.fulfill(json={"data": listed}))
        page.reload()
        expect(page.locator("#speak-voice option")).to_have_text(["joe: a man", "m1: a man"])
        languages = page.locator("#speak-language option")
        expect(languages).to_have_text(["Detect automatically", "English", "More languages…"])
        page.select_option("#speak-language", "more")
        expect(languages).to_have_text(["Detect automatically", "English", "Afrikaans"])
        first = "Dr. Smith walked home through the rain."
        _given(page, f"{first} {SENTENCES[0]}")
        _read_button(page).click()
        expect(_now(page)).to_have_text([first])
        expect(page.locator("#speak-sheet .spoken")).to_have_text([first, SENTENCES[0]])


@pytest.mark.nightly
def test_another_voice_is_tried_taken_and_remembered(browser, page_server):
    """The sample is in the language of the page; a choice while reading begins the sentence again."""
    with opened(browser, page_server.base, "speak", locale="de-DE") as watched:
        page = watched.page
        bodies = _asked(page)
        page.select_option("#speak-voice", "ash")
        page.click("#speak-try")
        expect(page.locator("#speak-try")).to_have_text("Stopp")
        expect(page.locator("#speak-try")).to_have_text("Stimme anhören")
        assert [bodies[0][name] for name in ("voice", "language")] == ["ash", "de"]
        assert bodies[0]["input"].startswith("So klingt")
        _given(page)
        page.select_option("#speak-language", "en")
        _read_button(page).click()
        expect(_now(page)).to_have_text(SENTENCES[1])
        page.select_option("#speak-speed", "1.5")
        expect(_now(page)).to_have_text(SENTENCES[2])
        assert bodies[-1] == {
            "input": TEXT[TEXT.index("The second") :],
            "voice": "ash",
            "language": "en",
            "speed": 1.5,
        }
        page.reload()
        chosen = {"voice": "ash", "language": "en", "speed": "1.5", "format": "mp3"}
        for name, value in chosen.items():
            expect(page.locator(f"#speak-{name}")).to_have_value(value)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "beginning"), [("mp3", (b"ID3", b"\xff\xf3")), ("wav", b"RIFF"), ("opus", b"OggS")])
def test_the_sound_is_saved_in_the_chosen_format(browser, page_server, tmp_path, name, beginning):
    """Under the first line of the text."""
    with opened(browser, page_server.base, "speak") as watched:
        page = watched.page
        _given(page, "A name\nand what follows it.")
        page.select_option("#speak-format", name)
        with page.expect_download() as download:
            page.click("#speak-save")
        assert download.value.suggested_filename == f"A name.{name}"
        download.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(beginning)
        expect(page.locator("#speak-save")).to_have_text("Download")


@pytest.mark.nightly
def test_a_download_can_be_cancelled_and_tried_again(browser, page_server):
    """A failure is reported with a button for another try."""
    with opened(browser, page_server.base, "speak") as watched:
        watched.allowed += ["500", "net::ERR_ABORTED"]
        page = watched.page
        _given(page)
        page.route("**/v1/audio/speech", lambda _: None)
        page.click("#speak-save")
        expect(page.locator("#speak-state")).to_have_text("Creating the audio file…")
        page.click("#speak-save")
        expect(page.locator("#speak-save")).to_have_text("Download")
        expect(page.locator(".toast")).to_have_count(0)
        page.unroute("**/v1/audio/speech")
        page.route("**/v1/audio/speech", lambda route: route.fulfill(status=500, json=FAILURE), times=1)
        page.click("#speak-save")
        expect(page.locator(".toast")).to_contain_text("The server failed on a sentence")
        with page.expect_download():
            page.locator(".toast").get_by_role("button", name="Try again").click()


@pytest.mark.nightly
@pytest.mark.parametrize("status", [500, 200])
def test_a_failure_is_reported_and_a_new_try_goes_on(browser, page_server, status):
    """As an answer, and as an event in the middle of one."""
    body = json.dumps(FAILURE) if status == 500 else f"data: {json.dumps(FAILURE)}\n\n"
    with opened(browser, page_server.base, "speak") as watched:
        watched.allowed += ["500"]
        page = watched.page
        page.route(STREAM, lambda route: route.fulfill(status=status, body=body), times=1)
        _given(page)
        _read_button(page).click()
        expect(page.locator("#speak-notice")).to_contain_text("The server failed on a sentence")
        page.click("#speak-again")
        expect(_now(page)).to_have_text(SENTENCES[0])
        expect(page.locator("#speak-notice")).to_be_hidden()


@pytest.mark.nightly
def test_an_answer_that_ends_too_early_is_a_failure(browser, page_server):
    """Though it ended as whole ones do: the last line is missing."""
    with opened(browser, page_server.base, "speak") as watched:
        page = watched.page
        page.route(STREAM, lambda route: route.fulfill(status=200, body=": ping\n\n"), times=1)
        _given(page)
        _read_button(page).click()
        expect(page.locator("#speak-notice")).to_contain_text("The connection broke")
        page.click("#speak-again")
        expect(_now(page)).to_have_text(SENTENCES[0])


@pytest.mark.nightly
def test_a_server_that_is_silent_says_why(browser, start):
    """There is nothing to press, in the menu of a transcript neither."""
    with start(SPEECH="off", MAX_SPEECH_CHARS="10") as server, opened(browser, server.base, "speak") as watched:
        watched.allowed += ["501"]
        page = watched.page
        expect(page.locator("#speak-notice")).to_have_text(re.compile("Text to speech is off.*SPEECH"))
        expect(page.locator("#speak button:visible, #speak textarea:visible")).to_have_count(0)
        page.goto(f"{server.base}/#t/{stored(page, [words_of('Turn on the light.')])}")
        page.click("#reader-export")
        expect(page.locator(".export-menu button").first).to_be_visible()
        expect(page.locator(".export-menu button", has_text="Read aloud")).to_have_count(0)


@pytest.mark.nightly
def test_with_a_key_it_reads(browser, guarded):
    """Without one it says what it needs; the voices come with the key."""
    with opened(browser, guarded.base, "speak") as watched:
        watched.allowed += ["401"]
        page = watched.page
        expect(page.locator("#speak-notice")).to_have_text(re.compile("key is missing or wrong"))
        page.click("#settings-open")
        page.fill("#key-field", guarded.key)
        page.keyboard.press("Enter")
        _given(page)
        _read_button(page).click()
        expect(_now(page)).to_have_text(SENTENCES[0])


@pytest.mark.nightly
def test_behind_a_gateway_it_reads(browser, tmp_path):
    """The worker is started for it."""
    server = running(tmp_path / "log", MODEL_ID="demo", GATEWAY_MODE="true")
    with server as gateway, opened(browser, gateway.base, "speak") as watched:
        page = watched.page
        _given(page)
        _read_button(page).click()
        for sentence in SENTENCES[:2]:
            expect(_now(page)).to_have_text(sentence)


@pytest.mark.nightly
def test_a_text_file_is_taken_and_one_that_is_too_long_is_not(browser, start):
    """Chosen or dropped; a text beyond the limit of the server cannot be read, and the page says so."""
    with start(MAX_SPEECH_CHARS="40") as server, opened(browser, server.base, "speak") as watched:
        page = watched.page
        expect(page.locator("#speak-count")).to_have_text(re.compile("of 40"))
        for name, encoding in (("utf8.txt", "utf-8"), ("windows.txt", "cp1252"), ("utf16.txt", "utf-16")):
            content = f"Grüße aus {name}".encode(encoding)
            page.set_input_files("#speak-file", {"name": name, "mimeType": "text/plain", "buffer": content})
            expect(page.locator("#speak-text")).to_have_value(f"Grüße aus {name}")
        _given(page, "A short text.")
        page.fill("#speak-text", "a " * 21)
        expect(page.locator("#speak-state")).to_have_text(re.compile("too long.*40 characters"))
        expect(_read_button(page)).to_be_disabled()
        page.set_input_files("#speak-file", {"name": "b.txt", "mimeType": "text/plain", "buffer": b"b" * 200})
        expect(page.locator("#speak-notice")).to_have_text(re.compile("too long"))
        page.click("#tab-live")
        page.evaluate(_DROP)
        expect(page.locator("#speak-text")).to_have_value("It was dropped.")
        expect(page.locator("#speak")).to_be_visible()


_DROP = """() => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(["It was dropped."], "any.txt", { type: "text/plain" }));
    document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""


@pytest.mark.nightly
def test_a_transcript_is_read_aloud_from_its_menu(browser, page_server):
    """Its text is put into the field."""
    with opened(browser, page_server.base) as watched:
        page = watched.page
        page.goto(f"{page_server.base}/#t/{stored(page, [words_of('Turn on the kitchen lights.')])}")
        page.click("#reader-export")
        page.locator(".export-menu button", has_text="Read aloud").click()
        expect(page.locator("#speak-text")).to_have_value(re.compile("Turn on the kitchen lights."))
        expect(page.locator("#speak")).to_be_visible()


@pytest.mark.nightly
def test_stop_ends_the_request(browser, page_server):
    """At once, whatever the server is at."""
    with opened(browser, page_server.base, "speak") as watched:
        watched.allowed += ["net::ERR_"]
        page = watched.page
        page.route(STREAM, lambda _: None)
        _given(page)
        with page.expect_request(STREAM):
            _read_button(page).click()
        expect(page.locator("#speak-state")).to_have_text("Waiting for the server…")
        with page.expect_event("requestfailed"):
            page.click("#speak-stop")
        expect(page.locator("#speak-text")).to_be_visible()
        expect(page.locator("#speak-notice")).to_be_hidden()


def test_a_voice_that_is_not_loaded_is_said_to_be(browser, page_server):
    """Until the first sentence comes; with it loaded, the page waits for the server."""
    health = page_server.health()
    with opened(browser, page_server.base, "speak") as watched:
        page = watched.page
        for state, said in {"unloaded": "Loading the voice…", "loaded": "Waiting for the server…"}.items():
            page.route("**/health", lambda route, _, state=state: route.fulfill(json=health | {"speech_state": state}))
            page.route(STREAM, lambda _: None)
            page.reload()
            _given(page)
            _read_button(page).click()
            expect(page.locator("#speak-state")).to_have_text(said)
            page.click("#speak-stop")


@pytest.mark.nightly
def test_the_sheet_follows_until_somebody_scrolls(browser, page_server):
    """The spoken sentence is in sight; whoever looks elsewhere stays there."""
    text = "\n\n".join(f"Paragraph {n} of them." for n in range(80))
    in_sight = """() => {
        const [now, sheet] = [document.querySelector(".spoken.now"), document.getElementById("speak-sheet")];
        const [own, around] = [now, sheet].map(one => one.getBoundingClientRect());
        return own.top >= around.top && own.bottom <= around.bottom;
    }"""
    with opened(browser, page_server.base, "speak") as watched:
        page = watched.page
        page.select_option("#speak-speed", "2")
        _given(page, text)
        _read_button(page).click()
        page.locator(".spoken").nth(40).focus()
        page.keyboard.press("Enter")
        expect(_now(page)).to_have_text("Paragraph 40 of them.")
        until(page, in_sight)
        page.evaluate("document.getElementById('speak-sheet').scrollTop = 0")
        for n in (41, 42):
            expect(_now(page)).to_have_text(f"Paragraph {n} of them.")
        assert page.evaluate("document.getElementById('speak-sheet').scrollTop") == 0
