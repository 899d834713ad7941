"""The page reads a user's text aloud, sentence by sentence, or saves it as a sound file."""

import json
import re

import pytest
from playwright.sync_api import expect

from E2Etest.browser.looking import LOOKED
from E2Etest.browser.person import go, hides, opened, press, shows
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
SPOKEN = "#speak-sheet [aria-current]"


def _gives(page, text=TEXT):
    page.fill("#speak-text", text)
    expect(page.locator("#speak-read")).to_be_enabled()


@pytest.mark.slow("reads three sentences aloud several times")
def test_a_text_is_read_aloud_and_saved(browser, page_server, look):
    """The spoken sentence is marked. Keys and clicks choose another one, from which reading starts again."""
    with opened(browser, page_server.base, "speak", locale="de-DE") as page:
        bodies = []
        page.on("request", lambda one: bodies.append(json.loads(one.post_data)) if "/speech/" in one.url else None)
        # The sample is in the language of the page.
        expect(page.locator("#speak-read")).to_be_disabled()
        expect(page.locator("#speak-voice")).to_have_value("alloy")
        page.select_option("#speak-voice", "ash")
        page.click("#speak-try")
        shows(page, "#speak-try", "Stopp")
        shows(page, "#speak-try", "Stimme anhören")
        assert [bodies[0][name] for name in ("voice", "language")] == ["ash", "de"]
        assert bodies.pop()["input"].startswith("So klingt")
        _reads(page, bodies, look)
        # The file has the chosen format. Its name is the first line of the text.
        _gives(page, "A name\nand what follows it.")
        for name, beginnings in BEGINNINGS.items():
            page.select_option("#speak-format", name)
            with page.expect_download() as download:
                page.click("#speak-save")
            assert download.value.suggested_filename == f"A name.{name}"
            assert download.value.path().read_bytes().startswith(beginnings)
        page.reload()
        for name, value in {"voice": "ash", "language": "en", "speed": "2", "format": "opus"}.items():
            expect(page.locator(f"#speak-{name}")).to_have_value(value)


def _reads(page, bodies, look):
    """Each choice requests the rest of the text. Afterwards the text can be edited again."""
    page.select_option("#speak-language", "en")
    _gives(page)
    shows(page, "#speak-count", like=f"{len(TEXT)} von 20.000")
    page.locator("#speak-read").press("Enter")
    shows(page, SPOKEN, SENTENCES[0])
    page.locator("#speak-sheet .spoken").first.focus()
    press(page, "End", "ArrowUp", "ArrowDown")
    expect(page.locator("#speak-sheet .spoken").last).to_be_focused()
    press(page, "Enter")
    shows(page, SPOKEN, SENTENCES[2])
    page.locator("#speak-sheet .spoken", has_text="second").click()
    shows(page, SPOKEN, SENTENCES[1])
    page.click("#speak-read")
    shows(page, "#speak-state", "Pausiert")
    look(page, "speak-reading")
    page.click("#speak-read")
    page.select_option("#speak-speed", "2")
    shows(page, SPOKEN, SENTENCES[2])
    rest = TEXT[TEXT.index("The second") :]
    assert [body["input"] for body in bodies] == [TEXT, SENTENCES[2], rest, rest]
    assert bodies[-1] == {"input": rest, "voice": "ash", "language": "en", "speed": 2}
    page.click("#speak-stop")
    expect(page.locator("#speak-text")).to_have_value(TEXT)
    hides(page, "#speak-sheet")
    expect(page.locator("#speak-read")).to_be_focused()
    for _ in range(2):
        page.click("#speak-read")
        for sentence in SENTENCES:
            shows(page, SPOKEN, sentence)
        shows(page, "#speak-text")


@LOOKED
@pytest.mark.nightly
def test_a_text_that_cannot_be_read_is_reported(browser, start, look):
    """The text is too long, or the server has no speech output, or it fails. Text files are chosen or dropped."""
    with start(MAX_SPEECH_CHARS="40") as server, opened(browser, server.base, "speak", ["500"]) as page:
        shows(page, "#speak-count", like="of 40")
        content = "Grüße aus Wien".encode("cp1252")
        page.set_input_files("#speak-file", {"name": "a.txt", "mimeType": "text/plain", "buffer": content})
        expect(page.locator("#speak-text")).to_have_value("Grüße aus Wien")
        page.fill("#speak-text", "a " * 21)
        shows(page, "#speak-state", like="too long.*40 characters")
        expect(page.locator("#speak-read")).to_be_disabled()
        page.set_input_files("#speak-file", {"name": "b.txt", "mimeType": "text/plain", "buffer": b"b" * 200})
        shows(page, "#speak-notice", like="too long")
        page.click("#tab-live")
        page.evaluate(DROP)
        expect(page.locator("#speak-text")).to_have_value("It was dropped.")
        error = {"message": "", "type": "server_error", "param": None, "code": "speech_failed"}
        page.route("**/speech/stream", lambda route: route.fulfill(status=500, json={"error": error}))
        page.click("#speak-read")
        shows(page, "#speak-again")
        look(page, "speak-failed")
        page.unroute_all()
        page.click("#speak-again")
        shows(page, SPOKEN, "It was dropped.")
    with start(SPEECH="off") as server, opened(browser, server.base, "speak", ["501"]) as page:
        shows(page, "#speak-notice", like="Text to speech is off.*SPEECH")
        expect(page.locator("#speak button:visible, #speak textarea:visible")).to_have_count(0)
        go(page, f"t/{stored(page, [words_of('Turn on the light.')])}")
        page.click("#reader-export")
        shows(page, ".export-menu button")
        expect(page.locator(".export-menu button", has_text=re.compile("Read aloud"))).to_have_count(0)
