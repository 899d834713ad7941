"""The page of captions of a shared session, in a browser that has no key."""

import re
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from E2Etest import recordings
from E2Etest.browser.conftest import opened
from E2Etest.browser.looking import looked_at
from E2Etest.live.session import act, data, open_session, pieces, upto_flush

pytestmark = [pytest.mark.websocket, pytest.mark.integration, pytest.mark.timeout(300)]

# Notes each text that the line has had.
_WATCH = """() => {
  window.seen = [];
  const lines = document.getElementById("lines");
  const note = () => window.seen.push(lines.textContent);
  new MutationObserver(note).observe(lines, { characterData: true, childList: true, subtree: true });
}"""


def _link(server, socket):
    answer = server.client.post(f"/v1/live/{socket.hello['session_id']}/share")
    return answer.json()["page"]


def test_the_page_shows_the_words_as_they_are_committed_and_takes_none_back(browser, guarded, shots):
    """The line only grows, up to the speaker's final, and the page says when the session has ended."""
    with opened(browser, guarded.base) as watched, open_session(guarded) as socket:
        watched.allowed += ["401"]  # of the main page, which is opened first
        page = watched.page
        page.goto(guarded.base + _link(guarded, socket))
        expect(page.locator("#state")).to_have_text("Waiting for words…")
        page.evaluate(_WATCH)
        for piece in pieces(data(recordings.samples()), 3_200):
            socket.send(piece)
        act(socket, "flush")
        said = upto_flush(socket)[-1]["text"]
        expect(page.locator("#lines p")).to_have_text(said)
        expect(page.locator("#state")).to_have_text("")
        page.screenshot(path=shots / "captions.png")
        seen = page.evaluate("window.seen")
        assert all(after.startswith(before) for before, after in pairwise(seen))
        socket.close(4001)  # the client will not come back
        expect(page.locator("#state")).to_have_text("The session has ended.")
        expect(page.locator("#lines p")).to_have_text(said)


@pytest.mark.nightly
def test_a_live_session_is_shared_and_no_longer(speaking, page_server, shots):
    """From its recording: by a link and its QR code, until the speaker revokes it."""
    with speaking(times=8) as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        expect(page.locator("#live-share")).to_be_hidden()
        page.click("#live-start")
        page.click("#live-share")
        link = page.locator("#share-address")
        expect(link).to_have_value(re.compile(f"^{page_server.base}/captions#[\\w-]+$"))
        assert int(page.locator("#share-code").get_attribute("viewBox").split()[2]) > 25
        assert page.locator("#share-code path").get_attribute("d").count("M") > 200
        assert looked_at(page, shots, "live-share") == []
        reader = page.context.new_page()
        reader.goto(link.input_value())
        expect(reader.locator("#lines")).to_contain_text("kitchen")
        page.click("#share-stop")
        expect(reader.locator("#state")).to_have_text("This link was revoked.")
        expect(page.locator("#share")).to_be_hidden()
        expect(page.locator("#live-share")).to_have_text("Share")
        page.click("#live-start")
        expect(page.locator("#live-share")).to_be_hidden()


def test_over_a_picture_the_page_has_no_ground_and_says_nothing_of_itself(browser, guarded):
    """Otherwise its contrast is that of black and white, in both schemes."""
    for scheme, ground, ink in (
        ("light", "rgb(255, 255, 255)", "rgb(0, 0, 0)"),
        ("dark", "rgb(0, 0, 0)", "rgb(255, 255, 255)"),
    ):
        with opened(browser, guarded.base, color_scheme=scheme) as watched:
            watched.allowed += ["401", "404"]
            page = watched.page
            page.goto(f"{guarded.base}/captions#no-token")
            expect(page.locator("#state")).to_have_text("This link is not valid, or the server takes no more readers.")
            assert _colours(page) == [ground, ink]
            page.goto(f"{guarded.base}/captions?background=transparent&size=2#no-token")
            expect(page.locator("#state")).to_be_hidden()
            assert _colours(page) == ["rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"]


def _colours(page):
    return page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
