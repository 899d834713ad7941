"""The page, the browser, the system, the server or the user interrupts a recording."""

import re
from contextlib import suppress

import pytest
from playwright.sync_api import Error, expect

from E2Etest.browser.person import FINALS, GREY, PAGE_MODULE, WAIT_MS, hides, opened, shows, until
from E2Etest.browser.storing import kept, texts, until_kept
from E2Etest.drive import recordings
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.websocket, pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(600)]

# Notes the seconds of sound that the page has taken from the microphone, as it goes away. Keeps every microphone and
# every sound context that it opens; `hold()` makes the next microphones wait.
WATCH = """
window.tracks = [];
window.contexts = [];
let held = Promise.resolve();
window.hold = () => { held = new Promise(resolve => { window.release = resolve; }); };
const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async wanted => {
    await held;
    const stream = await open(wanted);
    window.tracks.push(...stream.getTracks());
    return stream;
};
window.AudioContext = class extends AudioContext {
    constructor(...given) {
        super(...given);
        window.contexts.push(this);
        window.heard = () => this.currentTime;
    }
};
addEventListener("pagehide", () => window.heard && sessionStorage.setItem("heard", window.heard()), { capture: true });
"""
OPEN = "() => window.tracks.filter(track => track.readyState === 'live').length"
# A microphone with two channels, whatever the page requests, and sound only on the second one.
SECOND_CHANNEL = """
navigator.mediaDevices.getUserMedia = async () => {
    const context = new AudioContext();
    const tone = new OscillatorNode(context);
    const both = new ChannelMergerNode(context, { numberOfInputs: 2 });
    const stream = new MediaStreamAudioDestinationNode(context, { channelCount: 2 });
    tone.connect(both, 0, 1);
    both.connect(stream);
    tone.start();
    return stream.stream;
};
"""
# As Firefox without a sound output: its context stays suspended, and no promise of it is ever kept.
NO_SOUND = """
delete AudioContext.prototype.setSinkId;
AudioContext.prototype.resume = () => new Promise(() => {});
Object.defineProperty(BaseAudioContext.prototype, "state", { get: () => "suspended" });
"""
# `window.go()` lets the messages come, without which the page does not begin.
NO_MESSAGES = """
const fetched = window.fetch;
const held = new Promise((resolve) => (window.go = resolve));
window.fetch = async (...asked) => {
  if (String(asked[0]).includes("/messages/")) await held;
  return fetched(...asked);
};
"""
# The worklet gives blocks of 2048 samples; on a busy machine several are under way to the page.
BLOCKS_S = 0.3
WORDS = recordings.sample()[1]


def _starts(page):
    page.click("#live-start")
    shows(page, "#live-start", "Stop")


def _stops(page):
    page.click("#live-start")
    shows(page, "#live-start", "Start")


def _reloads_in_mid_sentence(page):
    """Return the words that were final. The page keeps the sound up to the reload."""
    shows(page, "#live-lines li.open .solid", like=r"\w")
    page.wait_for_timeout(370)
    shown = " ".join(page.locator("#live-lines .solid").all_inner_texts()).split()
    page.reload()
    heard = page.evaluate("Number(sessionStorage.getItem('heard'))")
    shows(page, "#live-interrupted")
    (found,) = kept(page)
    assert found["state"] == "cut"
    return shown, heard, found["seconds"]


def test_a_recording_goes_on_after_reloads(speaking, page_server):
    """The recording continues in the same transcript, and the kept sound without words is transcribed."""
    with opened(speaking, page_server.base, script=WATCH) as page:
        _starts(page)
        shows(page, FINALS, [WORDS])
        shown, heard, first_s = _reloads_in_mid_sentence(page)
        assert heard - BLOCKS_S <= first_s <= heard + 0.01
        page.click("#live-continue")
        expect(page.locator(FINALS)).to_have_count(3)
        shown, heard, both_s = _reloads_in_mid_sentence(page)
        assert first_s + heard - BLOCKS_S <= both_s <= first_s + heard + 0.01
        page.click("#live-rest")
        hides(page, "#live-interrupted")
        shows(page, "#live-start", "Start")
        said = page.locator(FINALS).all_inner_texts()
        assert " ".join(said).split()[: len(shown)] == shown
        assert [said[0], said[2], WORDS[:10]] == [WORDS, WORDS, said[1][:10]]
        (found,) = kept(page)
        assert (found["state"], texts(found)) == ("complete", said)
        assert found["rows"][1]["start"] < first_s <= found["rows"][2]["start"]
        assert found["seconds"] == pytest.approx(found["durationS"], abs=0.001)


def test_a_crash_of_the_page_or_the_server_loses_no_word(speaking, page_server, start):
    """No event announces a crash of the page: at most one second is lost, which was not written yet. A session is lost
    with its server, but the page still has the sound."""
    with speaking.new_context() as context:
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(PAGE_MODULE + WATCH)
        page = context.new_page()
        page.goto(f"{page_server.base}/#live")
        _starts(page)
        shows(page, FINALS, [WORDS])
        shows(page, GREY, like=r"\w")
        heard = page.evaluate("window.heard()")
        with page.expect_event("crash"), suppress(Error):
            page.goto("chrome://crash")
        page = context.new_page()
        page.goto(f"{page_server.base}/#live")
        shows(page, "#live-interrupted")
        assert kept(page)[0]["seconds"] >= heard - 1 - BLOCKS_S
    with (
        start(PRELOAD="true") as other,
        Proxy(page_server.port) as proxy,
        opened(speaking, proxy.base, allowed=["WebSocket connection", "Failed to load resource"]) as page,
    ):
        _starts(page)
        shows(page, GREY, like=r"\w")
        proxy.target, proxy.refusing = other.port, True
        proxy.cut()
        shows(page, "#live-connection", like="Still recording")
        proxy.refusing = False
        shows(page, FINALS, [WORDS, WORDS])
        _stops(page)
        assert texts(until_kept(page, lambda found: found[0]["state"] == "complete")[0])[:2] == [WORDS, WORDS]


def test_start_cannot_be_pressed_before_it_works(browser, page_server):
    with opened(browser, page_server.base, script=NO_MESSAGES) as page:
        with pytest.raises(Error, match="Timeout"):
            page.click("#live-start", timeout=500)
        page.evaluate("window.go()")
        _starts(page)
        _stops(page)


def test_the_microphone_is_held_no_longer_than_it_is_used(launch, browser, page_server):
    """Stop closes it, whatever was pressed before and whatever the system stopped. One that is odd is used, and of one
    that is refused or forbidden the page says what to do."""
    with opened(browser, page_server.base, script=WATCH) as page:
        _starts(page)
        for first in (["live-pause"], ["live-pause", "live-pause"]):
            page.evaluate("ids => ids.forEach(id => document.getElementById(id).click())", [*first, "live-start"])
            shows(page, "#live-start", "Start")
            assert page.evaluate(OPEN) == 0
            _starts(page)
        page.evaluate("window.contexts.at(-1).suspend()")  # a call on a phone, a laptop that slept
        shows(page, "#live-time", like="0:0[3-9]")
        opened_before = page.evaluate("window.tracks.length")
        page.evaluate("window.hold()")
        page.locator("#live-device").select_option(index=1)
        _stops(page)
        page.evaluate("window.release()")
        until(page, "before => window.tracks.length > before", opened_before)
        until(page, f"() => ({OPEN})() === 0")
    with opened(browser, page_server.base, script=SECOND_CHANNEL) as page:
        _starts(page)
        expect(page.locator("#live-level")).to_have_attribute("aria-valuenow", re.compile("[5-9]."))
        _stops(page)
        toast = page.locator(".toast", has_text="No words were heard")
        expect(toast).to_be_visible()
        assert kept(page) == []
        toast.get_by_text("Keep it").click()
        until_kept(page, lambda found: len(found) == 1)
    elsewhere = f"http://asr.test:{page_server.port}"
    with launch("--host-resolver-rules=MAP asr.test 127.0.0.1") as strict:
        for made, base, script, said in (
            (strict, page_server.base, "", "Microphone access is blocked.*Allow it.*press Start.$"),
            (strict, elsewhere, "", "https://.*localhost"),
            (browser, page_server.base, NO_SOUND, "sound output"),
        ):
            with opened(made, base, script=script) as page:
                page.click("#live-start")
                shows(page, "#live-notice", like=said)
                shows(page, "#live-start", "Start")
                assert kept(page) == []
