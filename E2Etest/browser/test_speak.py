"""The page reads a user's text aloud, sentence by sentence, or saves it as a sound file."""

import json
import re

import pytest
from playwright.sync_api import expect

from E2Etest.browser.conftest import opened
from E2Etest.browser.storing import stored, words_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SENTENCES = ["The first sentence is here.", "The second one 😀 follows it.", "A third paragraph ends the text."]
TEXT = f"{SENTENCES[0]} {SENTENCES[1]}\n\n{SENTENCES[2]}"
BEGINNINGS = {"mp3": (b"ID3", b"\xff\xf3"), "wav": (b"RIFF",), "opus": (b"OggS",)}
DROP = """() => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(["It was dropped."], "any.txt", { type: "text/plain" }));
    document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""


@pytest.mark.slow("reads three sentences aloud several times")
def test_a_text_is_read_aloud_and_saved(browser, page_server, tmp_path):
    """The spoken sentence is marked. Keys and clicks choose another one, from which reading starts again."""
    with opened(browser, page_server.base, "speak", locale="de-DE") as watched:
        page = watched.page
        bodies = []
        page.on("request", lambda one: bodies.append(json.loads(one.post_data)) if "/speech/" in one.url else None)
        _tries_a_voice(page, bodies)
        _reads_from_a_chosen_sentence(page, bodies)
        _reads_to_the_end(page)
        _saves(page, tmp_path)
        page.reload()
        for name, value in {"voice": "ash", "language": "en", "speed": "2", "format": "opus"}.items():
            expect(page.locator(f"#speak-{name}")).to_have_value(value)
        _lists_voices_and_languages(page)


def _gives(page, text=TEXT):
    page.fill("#speak-text", text)
    expect(page.locator("#speak-read")).to_be_enabled()


def _hears(page, sentence):
    expect(page.locator("#speak-sheet [aria-current]")).to_have_text(sentence)


def _tries_a_voice(page, bodies):
    """The sample is in the language of the page."""
    expect(page.locator("#speak-read")).to_be_disabled()
    expect(page.locator("#speak-voice")).to_have_value("alloy")
    page.select_option("#speak-voice", "ash")
    page.click("#speak-try")
    expect(page.locator("#speak-try")).to_have_text("Stopp")
    expect(page.locator("#speak-try")).to_have_text("Stimme anhören")
    assert [bodies[0][name] for name in ("voice", "language")] == ["ash", "de"]
    assert bodies.pop()["input"].startswith("So klingt")


def _reads_from_a_chosen_sentence(page, bodies):
    """Each choice requests the rest of the text. Afterwards the text can be edited again."""
    page.select_option("#speak-language", "en")
    _gives(page)
    expect(page.locator("#speak-count")).to_have_text(re.compile(f"{len(TEXT)} von 20.000"))
    page.locator("#speak-read").press("Enter")
    _hears(page, SENTENCES[0])
    page.locator("#speak-sheet .spoken").first.focus()
    for key in ("End", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("#speak-sheet .spoken").last).to_be_focused()
    page.keyboard.press("Enter")
    _hears(page, SENTENCES[2])
    page.locator("#speak-sheet .spoken", has_text="second").click()
    _hears(page, SENTENCES[1])
    page.select_option("#speak-speed", "2")
    _hears(page, SENTENCES[2])
    rest = TEXT[TEXT.index("The second") :]
    assert [body["input"] for body in bodies] == [TEXT, SENTENCES[2], rest, rest]
    assert bodies[-1] == {"input": rest, "voice": "ash", "language": "en", "speed": 2}
    page.click("#speak-stop")
    expect(page.locator("#speak-text")).to_have_value(TEXT)
    expect(page.locator("#speak-sheet")).to_be_hidden()
    expect(page.locator("#speak-read")).to_be_focused()


def _reads_to_the_end(page):
    """The text can be edited again."""
    for _ in range(2):
        page.locator("#speak-read").click()
        for sentence in SENTENCES:
            _hears(page, sentence)
        expect(page.locator("#speak-text")).to_be_visible()


def _saves(page, folder):
    """The file has the chosen format. Its name is the first line of the text."""
    _gives(page, "A name\nand what follows it.")
    for name, beginnings in BEGINNINGS.items():
        page.select_option("#speak-format", name)
        with page.expect_download() as download:
            page.click("#speak-save")
        assert download.value.suggested_filename == f"A name.{name}"
        download.value.save_as(folder / name)
        assert (folder / name).read_bytes().startswith(beginnings)


def _lists_voices_and_languages(page):
    """Each voice is listed once, by its own name, and frequent languages come first. An abbreviation does not end a
    sentence."""
    voice = {"id": "joe", "description": "a man", "languages": ["af", "en", "qya"], "alias_of": None}
    listed = [*(voice | {"id": name, "alias_of": "joe"} for name in ("alloy", "nova")), voice, voice | {"id": "m1"}]
    page.route("**/v1/audio/voices", lambda route: route.fulfill(json={"data": listed}))
    page.reload()
    expect(page.locator("#speak-voice option")).to_have_text(["joe: a man", "m1: a man"])
    languages = page.locator("#speak-language option")
    expect(languages).to_have_text(["Automatisch erkennen", "Englisch", "Weitere Sprachen…"])
    page.select_option("#speak-language", "more")
    expect(languages).to_have_text(["Automatisch erkennen", "Englisch", "Afrikaans"])
    first = "Dr. Smith walked home through the rain."
    _gives(page, f"{first} {SENTENCES[0]}")
    page.locator("#speak-read").click()
    _hears(page, first)
    expect(page.locator("#speak-sheet .spoken")).to_have_text([first, SENTENCES[0]])


@pytest.mark.nightly
def test_a_text_that_cannot_be_read_is_reported(browser, start):
    """The text is too long, or the server has no speech output. Text files are chosen or dropped."""
    with start(MAX_SPEECH_CHARS="40") as server, opened(browser, server.base, "speak") as watched:
        page = watched.page
        expect(page.locator("#speak-count")).to_have_text(re.compile("of 40"))
        content = "Grüße aus Wien".encode("cp1252")
        page.set_input_files("#speak-file", {"name": "a.txt", "mimeType": "text/plain", "buffer": content})
        expect(page.locator("#speak-text")).to_have_value("Grüße aus Wien")
        page.fill("#speak-text", "a " * 21)
        expect(page.locator("#speak-state")).to_have_text(re.compile("too long.*40 characters"))
        expect(page.locator("#speak-read")).to_be_disabled()
        page.set_input_files("#speak-file", {"name": "b.txt", "mimeType": "text/plain", "buffer": b"b" * 200})
        expect(page.locator("#speak-notice")).to_have_text(re.compile("too long"))
        page.click("#tab-live")
        page.evaluate(DROP)
        expect(page.locator("#speak-text")).to_have_value("It was dropped.")
        expect(page.locator("#speak")).to_be_visible()
    with start(SPEECH="off") as server, opened(browser, server.base, "speak") as watched:
        watched.allowed += ["501"]
        page = watched.page
        expect(page.locator("#speak-notice")).to_have_text(re.compile("Text to speech is off.*SPEECH"))
        expect(page.locator("#speak button:visible, #speak textarea:visible")).to_have_count(0)
        page.goto(f"{server.base}/#t/{stored(page, [words_of('Turn on the light.')])}")
        page.click("#reader-export")
        expect(page.locator(".export-menu button").first).to_be_visible()
        expect(page.locator(".export-menu button", has_text="Read aloud")).to_have_count(0)
