"""A user speaks to the page over a connection that breaks, and others read along."""

import re
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from E2Etest.browser.looking import audit
from E2Etest.browser.person import FINALS, GREY, hides, opened, poll, shows
from E2Etest.browser.storing import texts, until_kept
from E2Etest.drive import recordings
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.websocket, pytest.mark.integration, pytest.mark.timeout(300)]

WORDS = recordings.sample()[1]
# Notes the lines of the captions after each change.
WATCH = """() => {
    const lines = document.querySelector("#lines");
    window.seen = [];
    const note = () => window.seen.push([...lines.querySelectorAll("p")].map((line) => line.textContent));
    new MutationObserver(note).observe(lines, { characterData: true, childList: true, subtree: true });
}"""
BLACK, WHITE = "rgb(0, 0, 0)", "rgb(255, 255, 255)"
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"


@pytest.mark.slow("speaks as long as a person does")
def test_what_is_said_is_written_shared_and_kept(speaking, page_server):
    """Gray words turn black and stay. A broken connection loses or repeats no word, and a pause records nothing."""
    allowed = ["WebSocket connection", "Failed to load resource", "ERR_"]
    with Proxy(page_server.port) as proxy, opened(speaking, proxy.base, allowed=allowed) as page:
        hides(page, "#live-share")
        page.click("#live-start")
        reader = _shares(page, proxy.base)
        shows(page, FINALS, WORDS)
        shows(page, "#live-announcer", WORDS)
        shows(page, GREY, like=r"\w")
        proxy.refusing = True
        proxy.cut()
        shows(page, "#live-connection", like="Connection lost")
        proxy.refusing = False
        shows(page, FINALS, [WORDS, WORDS])
        expect(page.locator("#live-connection")).not_to_contain_text("lost")
        shows(reader, "#lines p", [WORDS, WORDS])
        # The reader is behind another page and drawn only now and then, so it may not show how the first lines grow.
        seen = poll(
            reader, lambda seen: len({lines[-1] for lines in seen}) > 1, lambda reader: reader.evaluate("window.seen")
        )
        for before, after in pairwise(seen):
            assert all(new.startswith(old) for old, new in zip(before, after, strict=False))
        page.click("#live-share")
        page.click("#share-stop")
        shows(reader, "#state", "This link was revoked.")
        shows(page, "#live-share", "Share")
        said = _pauses(page)
        reader = _shares(page, proxy.base)
        page.click("#live-start")
        shows(page, "#live-start", "Start")
        shows(page, "#live-open")
        (found,) = until_kept(page, lambda found: found[0]["state"] == "complete")
        assert texts(found)[: len(said)] == said
        assert said[:-1] == [WORDS] * (len(said) - 1)
        assert WORDS.startswith(said[-1][:5])
        for row in found["rows"][:2]:
            assert "".join(word["text"] for word in row["words"]).strip() == WORDS
            assert all(0 < word["start"] <= word["end"] < found["seconds"] for word in row["words"])
        _reads_captions(reader, proxy.base)


def _shares(page, base):
    """A link and its QR code open the session for readers."""
    page.click("#live-share")
    link = page.locator("#share-address")
    expect(link).to_have_value(re.compile(f"^{base}/captions#[\\w-]+$"))
    assert page.locator("#share-code path").get_attribute("d").count("M") > 200
    assert audit(page) == []
    reader = page.context.new_page()
    reader.goto(link.input_value())
    page.bring_to_front()  # a browser draws a hidden page seldom
    page.click("#share-close")
    shows(reader, "#lines p >> nth=0", like=r"\w")
    reader.evaluate(WATCH)
    return reader


def _pauses(page):
    """The line ends, the clock stops, and every panel shows the microphone. Afterwards the recording continues. Returns
    the lines."""
    page.click("#tab-files")
    shows(page, "#recording-time", like=r"^0:\d\d$")
    expect(page).to_have_title(re.compile(r"^● 0:\d\d · Files · "))
    page.click("#recording")
    shows(page, GREY, like=r"\w")
    page.click("#live-pause")
    expect(page).to_have_title(re.compile(r"^‖ 0:\d\d · Live"))
    expect(page.locator("#live-lines li.open")).to_have_count(0)
    at, said = page.inner_text("#live-time"), page.locator(FINALS).all_inner_texts()
    page.wait_for_timeout(1500)
    assert page.inner_text("#live-time") == at
    page.click("#live-pause")
    expect(page.locator("#live-time")).not_to_have_text(at)
    return said


def _reads_captions(page, base):
    """The words stay after the end. The page is transparent for a video overlay, otherwise black and white."""
    shows(page, "#state", "The session has ended.")
    shows(page, "#lines p >> nth=0", like=r"\w")
    page.goto(f"{base}/captions?size=2#no-token")
    shows(page, "#state", "This link is not valid, or the server takes no more readers.")
    for scheme, colours in (("dark", [BLACK, WHITE]), ("light", [WHITE, BLACK])):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(COLOURS) == colours
    page.goto(f"{base}/captions?background=transparent&size=2#no-token")
    hides(page, "#state")
    assert page.evaluate(COLOURS) == ["rgba(0, 0, 0, 0)", WHITE]
