"""Live: a recording that a reload, a closed tab or a crash cuts off has lost nothing, and goes on."""

import re
from contextlib import suppress

import pytest
from playwright.sync_api import Error, expect

from E2Etest import recordings
from E2Etest.browser.conftest import DESK, PAGE_MODULE, WAIT_MS, opened
from E2Etest.browser.storing import kept, until

pytestmark = [pytest.mark.websocket, pytest.mark.integration, pytest.mark.timeout(300)]

# Seconds of sound that the page's audio graph has taken from the microphone, noted as the page goes away.
CLOCK = """
    window.AudioContext = class extends AudioContext {
        constructor(...given) { super(...given); window.heard = () => this.currentTime; }
    };
    const note = () => window.heard && sessionStorage.setItem("heard", window.heard());
    addEventListener("pagehide", note, { capture: true });
"""
SLOW_DISK = """async () => {
    const { store } = await pageModule("store.js");
    const append = store.appendSound.bind(store);
    store.appendSound = (...given) => new Promise((done) => setTimeout(done, 300)).then(() => append(...given));
}"""
# The worklet gives blocks of 2048 samples; on a busy machine several are under way to the page.
BLOCKS_S = 0.3


def _listen(page):
    page.add_init_script(CLOCK)
    page.reload()
    page.click("#live-start")


def _in_mid_sentence(page):
    expect(page.locator("#live-lines li.open .solid")).to_have_text(re.compile(r"\w"))


def _finals(page):
    return page.locator("#live-lines li:not(.open) p").all_inner_texts()


@pytest.mark.nightly
@pytest.mark.parametrize("times", [1, 3])
def test_a_reload_in_mid_recording_loses_no_word_and_no_second(speaking, page_server, times):
    """In the middle of a sentence: the sound up to the reload is kept, and its words come from that."""
    _, words = recordings.sample()
    with speaking(times=times) as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.on("dialog", lambda dialog: dialog.accept())
        _listen(page)
        expect(page.locator("#live-lines li:not(.open)")).to_have_count(times - 1)
        _in_mid_sentence(page)
        page.wait_for_timeout(370)
        shown = " ".join(page.locator("#live-lines .solid").all_inner_texts()).split()
        page.reload()
        heard = page.evaluate("Number(sessionStorage.getItem('heard'))")
        expect(page.locator("#live-interrupted")).to_be_visible()
        (found,) = kept(page)
        assert found["state"] == "cut"
        assert heard - BLOCKS_S <= found["seconds"] <= heard + 0.01
        print(f"lost at the reload: {heard - found['seconds']:.3f} s of {heard:.1f} s")
        page.click("#live-rest")
        expect(page.locator("#live-start")).to_have_text("Start")
        expect(page.locator("#live-interrupted")).to_be_hidden()
        said = " ".join(_finals(page)).split()
        assert said[: len(shown)] == shown
        assert said == (words.split() * times)[: len(said)]
        (found,) = kept(page)
        assert found["state"] == "complete"
        assert " ".join(row["text"] for row in found["rows"]).split() == said


@pytest.mark.nightly
def test_an_interrupted_recording_goes_on_in_the_same_transcript(speaking, page_server):
    """What was said before the reload comes first, then what is said behind it, with times that go on."""
    _, words = recordings.sample()
    with speaking() as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.on("dialog", lambda dialog: dialog.accept())
        _listen(page)
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text([words])
        page.reload()
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text([words])
        before = kept(page)[0]["seconds"]
        page.click("#live-continue")
        expect(page.locator("#live-start")).to_have_text("Stop")
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text([words, words])
        page.click("#live-start")
        expect(page.locator("#live-start")).to_have_text("Start")
        (found,) = kept(page)
        assert [row["text"] for row in found["rows"]] == [words, words]
        assert found["rows"][0]["end"] <= before <= found["rows"][1]["start"]
        assert found["seconds"] == pytest.approx(found["durationS"], abs=0.001)
        assert found["state"] == "complete"


@pytest.mark.nightly
def test_a_recording_is_complete_once_its_sound_is_stored(speaking, page_server):
    """On a disk that takes its time for each piece."""
    _, words = recordings.sample()
    with speaking() as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.evaluate(SLOW_DISK)
        page.click("#live-start")
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text([words])
        page.click("#live-start")
        until(page, "async () => (await (await pageModule('store.js')).store.list())[0].state === 'complete'")
        (found,) = kept(page)
        assert found["seconds"] == pytest.approx(found["durationS"], abs=0.001)


@pytest.mark.nightly
def test_the_reader_offers_to_transcribe_the_rest(speaking, page_server):
    """Of an interrupted recording; the same transcript is complete then."""
    _, words = recordings.sample()
    with speaking() as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.on("dialog", lambda dialog: dialog.accept())
        _listen(page)
        _in_mid_sentence(page)
        page.reload()
        expect(page.locator("#live-interrupted")).to_be_visible()
        (before,) = kept(page)
        page.evaluate("id => { location.hash = `#t/${id}`; }", before["id"])
        expect(page.locator("#reader-state")).to_contain_text("cut off")
        page.get_by_role("button", name="Continue", exact=True).click()
        expect(page.locator("#live")).to_be_visible()
        expect(page.locator("#live-open")).to_be_visible()
        (found,) = kept(page)
        assert (found["id"], found["state"]) == (before["id"], "complete")
        said = " ".join(row["text"] for row in found["rows"]).split()
        assert said == words.split()[: len(said)]
        assert len(said) >= len(" ".join(row["text"] for row in before["rows"]).split())


@pytest.mark.nightly
def test_a_crash_of_the_page_loses_at_most_the_second_that_was_not_written(speaking, page_server):
    """The process of the page is killed: no event tells it."""
    _, words = recordings.sample()
    with speaking(times=2) as browser, browser.new_context(viewport=DESK) as context:
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(PAGE_MODULE)
        page = context.new_page()
        page.add_init_script(CLOCK)
        page.goto(f"{page_server.base}/#live")
        page.click("#live-start")
        expect(page.locator("#live-lines li:not(.open) p")).to_have_text([words])
        _in_mid_sentence(page)
        heard = page.evaluate("window.heard()")
        with page.expect_event("crash"), suppress(Error):
            page.goto("chrome://crash")
        page = context.new_page()
        page.goto(f"{page_server.base}/#live")
        expect(page.locator("#live-interrupted")).to_be_visible()
        (found,) = kept(page)
        print(f"lost at the crash: {heard - found['seconds']:.3f} s of {heard:.1f} s")
        assert found["seconds"] >= heard - 1 - BLOCKS_S
        page.click("#live-rest")
        expect(page.locator("#live-start")).to_have_text("Start")
        said = " ".join(_finals(page)).split()
        assert len(said) >= len(words.split())
        assert said == (words.split() * 2)[: len(said)]


@pytest.mark.nightly
def test_what_is_left_as_it_is_is_not_offered_again(speaking, page_server):
    """It stays in the list, marked as cut off."""
    with speaking() as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.on("dialog", lambda dialog: dialog.accept())
        _listen(page)
        _in_mid_sentence(page)
        page.reload()
        page.click("#live-leave")
        expect(page.locator("#live-interrupted")).to_be_hidden()
        page.reload()
        expect(page.locator("#live-start")).to_have_text("Start")
        page.wait_for_timeout(1000)
        expect(page.locator("#live-interrupted")).to_be_hidden()
        (found,) = kept(page)
        assert found["state"] == "cut"
        assert found["rows"][0]["text"].split()[0] == recordings.sample()[1].split()[0]
