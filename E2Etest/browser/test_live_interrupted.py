"""The page, the browser, the system, the server or the user interrupts a recording."""

import re
import signal
from contextlib import ExitStack, contextmanager, suppress

import pytest
from playwright.sync_api import Error, expect

from E2Etest.browser.conftest import DESK, FINALS, MICROPHONE, PAGE_MODULE, WAIT_MS, opened
from E2Etest.browser.storing import kept, until
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
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
# The worklet gives blocks of 2048 samples; on a busy machine several are under way to the page.
BLOCKS_S = 0.3
WORDS = recordings.sample()[1]


def test_no_word_is_lost_whatever_interrupts_the_recording(speaking, launch, page_server, tmp_path):
    """The causes are a reload, a crash of the page or the server, quick clicks, and sound that the system stopped."""
    _reloads_in_mid_sentence(speaking, page_server)
    _goes_on_in_the_same_transcript(speaking, page_server)
    _survives_a_crash_of_the_page(speaking, page_server)
    _survives_a_crash_of_the_server(speaking, tmp_path)
    _presses_buttons_while_something_is_waited_for(speaking, page_server)
    _has_a_microphone_that_is_odd_refused_or_forbidden(launch, page_server)


@contextmanager
def _listening(speaking, page_server, times):
    with speaking(times=times) as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.on("dialog", lambda dialog: dialog.accept())
        page.add_init_script(WATCH)
        page.reload()
        _starts(page)
        yield page


def _starts(page):
    page.click("#live-start")
    expect(page.locator("#live-start")).to_have_text("Stop")


def _stops(page):
    page.click("#live-start")
    expect(page.locator("#live-start")).to_have_text("Start")


def _in_mid_sentence(page):
    expect(page.locator("#live-lines li.open .solid")).to_have_text(re.compile(r"\w"))


def _reloads_in_mid_sentence(speaking, page_server):
    """The page keeps the sound up to the reload, and transcribes it."""
    with _listening(speaking, page_server, 3) as page:
        expect(page.locator(FINALS)).to_have_count(2)
        _in_mid_sentence(page)
        page.wait_for_timeout(370)
        shown = " ".join(page.locator("#live-lines .solid").all_inner_texts()).split()
        page.reload()
        heard = page.evaluate("Number(sessionStorage.getItem('heard'))")
        expect(page.locator("#live-interrupted")).to_be_visible()
        (found,) = kept(page)
        assert found["state"] == "cut"
        assert heard - BLOCKS_S <= found["seconds"] <= heard + 0.01
        page.click("#live-rest")
        expect(page.locator("#live-interrupted")).to_be_hidden()
        expect(page.locator("#live-start")).to_have_text("Start")
        said = " ".join(page.locator(FINALS).all_inner_texts()).split()
        assert said[: len(shown)] == shown
        assert said == (WORDS.split() * 3)[: len(said)]
        (found,) = kept(page)
        assert (found["state"], " ".join(row["text"] for row in found["rows"]).split()) == ("complete", said)


def _goes_on_in_the_same_transcript(speaking, page_server):
    with _listening(speaking, page_server, 1) as page:
        expect(page.locator(FINALS)).to_have_text([WORDS])
        page.reload()
        expect(page.locator(FINALS)).to_have_text([WORDS])
        before = kept(page)[0]["seconds"]
        page.click("#live-continue")
        expect(page.locator(FINALS)).to_have_text([WORDS, WORDS])
        _stops(page)
        (found,) = kept(page)
        assert [row["text"] for row in found["rows"]] == [WORDS, WORDS]
        assert found["rows"][0]["end"] <= before <= found["rows"][1]["start"]
        assert found["seconds"] == pytest.approx(found["durationS"], abs=0.001)


def _survives_a_crash_of_the_page(speaking, page_server):
    """No event announces a crash. At most one second is lost, which was not written yet."""
    with speaking(times=2) as browser, browser.new_context(viewport=DESK) as context:
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(PAGE_MODULE + WATCH)
        page = context.new_page()
        page.goto(f"{page_server.base}/#live")
        page.click("#live-start")
        expect(page.locator(FINALS)).to_have_text([WORDS])
        _in_mid_sentence(page)
        heard = page.evaluate("window.heard()")
        with page.expect_event("crash"), suppress(Error):
            page.goto("chrome://crash")
        page = context.new_page()
        page.goto(f"{page_server.base}/#live")
        expect(page.locator("#live-interrupted")).to_be_visible()
        assert kept(page)[0]["seconds"] >= heard - 1 - BLOCKS_S


def _survives_a_crash_of_the_server(speaking, folder):
    """The session is lost with its process. The page still has the sound."""
    with Proxy(9) as proxy, ExitStack() as stack:
        first = stack.enter_context(ready(folder / "one", IDLE_TIMEOUT="0"))
        proxy.target = first.port
        browser = stack.enter_context(speaking(times=2))
        watched = stack.enter_context(opened(browser, proxy.base))
        watched.allowed += ["WebSocket connection", "Failed to load resource"]
        page = watched.page
        _starts(page)
        expect(page.locator("#live-lines .grey")).to_have_text(re.compile(r"\w"))
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        expect(page.locator("#live-connection")).to_have_text(re.compile("Still recording"))
        proxy.target = stack.enter_context(ready(folder / "two", IDLE_TIMEOUT="0")).port
        expect(page.locator(FINALS)).to_have_text([WORDS, WORDS])
        _stops(page)
        assert page.locator(FINALS).all_inner_texts() == [WORDS, WORDS]


def _presses_buttons_while_something_is_waited_for(speaking, page_server):
    """Stop ends the recording, whatever was pressed before, and closes the microphone."""
    with _listening(speaking, page_server, 4) as page:
        for first in (["live-pause"], ["live-pause", "live-pause"]):
            page.evaluate("ids => ids.forEach(id => document.getElementById(id).click())", [*first, "live-start"])
            expect(page.locator("#live-start")).to_have_text("Start")
            assert page.evaluate(OPEN) == 0
            _starts(page)
        page.evaluate("window.contexts.at(-1).suspend()")  # a call on a phone, a laptop that slept
        expect(page.locator("#live-time")).to_have_text(re.compile("0:0[3-9]"))
        opened_before = page.evaluate("window.tracks.length")
        page.evaluate("window.hold()")
        page.locator("#live-device").select_option(index=1)
        _stops(page)
        page.evaluate("window.release()")
        until(page, "before => window.tracks.length > before", opened_before)
        until(page, f"() => ({OPEN})() === 0")


def _has_a_microphone_that_is_odd_refused_or_forbidden(launch, page_server):
    """The page reports each case and what to do, and can start again."""
    with launch(*MICROPHONE) as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.add_init_script(SECOND_CHANNEL)
        page.reload()
        _starts(page)
        expect(page.locator("#live-level")).to_have_attribute("aria-valuenow", re.compile("[5-9]."))
        _stops(page)
        toast = page.locator(".toast", has_text="No words were heard")
        expect(toast).to_be_visible()
        assert kept(page) == []
        toast.get_by_text("Keep it").click()
        until(page, "async () => (await (await pageModule('store.js')).store.list()).length === 1")
    elsewhere = f"http://asr.test:{page_server.port}"
    for base, said in (
        (page_server.base, "Microphone access is blocked.*Allow it.*press Start.$"),
        (elsewhere, "https://.*localhost"),
    ):
        with (
            launch(MICROPHONE[1], "--host-resolver-rules=MAP asr.test 127.0.0.1") as browser,
            opened(browser, base) as watched,
        ):
            watched.page.click("#live-start")
            expect(watched.page.locator("#live-notice")).to_have_text(re.compile(said))
            expect(watched.page.locator("#live-start")).to_have_text("Start")
