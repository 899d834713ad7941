"""A user speaks to the page over a connection that breaks, and others read along."""

import re
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from E2Etest.browser.conftest import FINALS, opened
from E2Etest.browser.looking import looked_at
from E2Etest.browser.storing import until_kept
from E2Etest.drive import recordings
from E2Etest.drive.session import act, data, open_session, pieces, upto_flush
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.websocket, pytest.mark.integration, pytest.mark.timeout(300)]

# Notes each text that the line has had.
_WATCH = """() => {
  window.seen = [];
  const lines = document.getElementById("lines");
  const note = () => window.seen.push(lines.textContent);
  new MutationObserver(note).observe(lines, { characterData: true, childList: true, subtree: true });
}"""


@pytest.mark.slow("speaks as long as a person does")
def test_what_is_said_is_written_shared_and_kept(speaking, page_server):
    """Gray words turn black and stay. A broken connection loses or repeats no word, and a pause records nothing."""
    _, words = recordings.sample()
    with Proxy(page_server.port) as proxy, speaking(times=8) as browser, opened(browser, proxy.base) as watched:
        watched.allowed += ["WebSocket connection", "Failed to load resource", "ERR_"]
        page = watched.page
        expect(page.locator("#live-share")).to_be_hidden()
        page.click("#live-start")
        reader = _shares(page, proxy)
        expect(page.locator(FINALS)).to_have_text(words)
        expect(page.locator("#live-announcer")).to_have_text(words)
        _loses_the_connection(page, proxy)
        expect(page.locator(FINALS)).to_have_text([words, words])
        expect(page.locator("#live-connection")).not_to_contain_text("lost")
        expect(reader.locator("#lines p").last).to_have_text(words)
        _stops_sharing(page, reader)
        said = _pauses(page)
        page.click("#live-start")
        expect(page.locator("#live-start")).to_have_text("Start")
        expect(page.locator("#live-open")).to_be_visible()
        (found,) = until_kept(page, lambda found: found[0]["state"] == "complete")
        assert [row["text"] for row in found["rows"]][: len(said)] == said
        assert said[:-1] == [words] * (len(said) - 1)
        assert words.startswith(said[-1][:5])
        for row in found["rows"][:2]:
            assert "".join(word["text"] for word in row["words"]).strip() == words
            assert all(0 < word["start"] <= word["end"] < found["seconds"] for word in row["words"])


def _shares(page, proxy):
    """A link and its QR code open the session for readers."""
    page.click("#live-share")
    link = page.locator("#share-address")
    expect(link).to_have_value(re.compile(f"^{proxy.base}/captions#[\\w-]+$"))
    assert page.locator("#share-code path").get_attribute("d").count("M") > 200
    assert looked_at(page, "live-share") == []
    reader = page.context.new_page()
    reader.goto(link.input_value())
    page.click("#share-close")
    expect(page.locator("#live-lines .open .grey")).to_have_text(re.compile(r"\w"))
    return reader


def _loses_the_connection(page, proxy):
    """Break the connection for a while, in the middle of the second sentence."""
    expect(page.locator("#live-lines .open .grey")).to_have_text(re.compile(r"\w"))
    proxy.refusing = True
    proxy.cut()
    expect(page.locator("#live-connection")).to_have_text(re.compile("Connection lost"))
    proxy.refusing = False


def _stops_sharing(page, reader):
    page.click("#live-share")
    page.click("#share-stop")
    expect(reader.locator("#state")).to_have_text("This link was revoked.")
    expect(page.locator("#live-share")).to_have_text("Share")


def _pauses(page):
    """The line ends, the clock stops, and every panel shows the microphone. Afterwards the recording continues. Returns
    the lines."""
    page.click("#tab-files")
    expect(page.locator("#recording-time")).to_have_text(re.compile(r"^0:\d\d$"))
    expect(page).to_have_title(re.compile(r"^● 0:\d\d · Files · "))
    page.click("#recording")
    expect(page.locator("#live-lines .open .grey")).to_have_text(re.compile(r"\w"))
    page.click("#live-pause")
    expect(page).to_have_title(re.compile(r"^‖ 0:\d\d · Live"))
    expect(page.locator("#live-lines li.open")).to_have_count(0)
    at, said = page.inner_text("#live-time"), page.locator(FINALS).all_inner_texts()
    page.wait_for_timeout(1500)
    assert page.inner_text("#live-time") == at
    page.click("#live-pause")
    expect(page.locator("#live-time")).not_to_have_text(at)
    return said


@pytest.mark.slow("a session ends only some time after its client")
def test_captions_only_grow_and_can_lie_over_a_picture(browser, guarded):
    """A reader needs no key. The page is transparent for a video overlay, otherwise black and white."""
    with opened(browser, guarded.base, color_scheme="dark") as watched, open_session(guarded) as socket:
        watched.allowed += ["401", "404"]
        page = watched.page
        shared = guarded.client.post(f"/v1/live/{socket.hello['session_id']}/share").json()
        page.goto(guarded.base + shared["page"])
        expect(page.locator("#state")).to_have_text("Waiting for words…")
        page.evaluate(_WATCH)
        for piece in pieces(data(recordings.samples()), 3_200):
            socket.send(piece)
        act(socket, "flush")
        said = upto_flush(socket)[-1]["text"]
        expect(page.locator("#lines p")).to_have_text(said)
        assert all(after.startswith(before) for before, after in pairwise(page.evaluate("window.seen")))
        socket.close()
        expect(page.locator("#state")).to_have_text("The session has ended.")
        expect(page.locator("#lines p")).to_have_text(said)
        page.goto(f"{guarded.base}/captions?size=2#no-token")
        expect(page.locator("#state")).to_have_text("This link is not valid, or the server takes no more readers.")
        assert _colours(page) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
        page.emulate_media(color_scheme="light")
        assert _colours(page) == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
        page.goto(f"{guarded.base}/captions?background=transparent&size=2#no-token")
        expect(page.locator("#state")).to_be_hidden()
        assert _colours(page) == ["rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"]


def _colours(page):
    return page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
