"""The page of captions of a shared session, in a browser that has no key."""

from itertools import pairwise

import pytest
from playwright.sync_api import expect

from E2Etest import recordings
from E2Etest.browser.conftest import opened
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
