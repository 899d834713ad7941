"""Live, with buttons pressed while something is waited for, and with sound that is stopped from outside."""

import re
import time

import pytest
from playwright.sync_api import expect

from E2Etest.browser.conftest import WAIT_MS, opened
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Keeps every microphone and every sound context that the page opens; `hold()` makes the next microphones wait.
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
    constructor(...given) { super(...given); window.contexts.push(this); }
};
"""
OPEN = "window.tracks.filter(track => track.readyState === 'live').length"
CLICK = "ids => ids.forEach(id => document.getElementById(id).click())"


@pytest.fixture
def listening(speaking, page_server):
    """A page that listens, and is watched."""
    with speaking(times=4) as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.add_init_script(WATCH)
        page.reload()
        page.click("#live-start")
        expect(page.locator("#live-start")).to_have_text("Stop")
        expect(page.locator("#live-time")).to_have_text(re.compile(r"\d"))
        yield page


def _idle(page):
    expect(page.locator("#live-start")).to_have_text("Start")
    assert page.evaluate(OPEN) == 0


def _until(page, condition):
    """`wait_for_function` would be stopped by the page's policy."""
    give_up_s = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < give_up_s, condition
        page.wait_for_timeout(20)


def _choose(page, index):
    page.evaluate(
        """index => {
            const select = document.getElementById("live-device");
            select.selectedIndex = index;
            select.dispatchEvent(new Event("change"));
        }""",
        index,
    )


@pytest.mark.nightly
def test_a_microphone_that_opens_after_the_end_is_let_go(listening):
    """Another was chosen, and Stop pressed before the browser had it: nobody may be heard after that."""
    listening.evaluate("window.hold()")
    _choose(listening, 1)
    listening.click("#live-start")
    expect(listening.locator("#live-start")).to_have_text("Start")
    listening.evaluate("window.release()")
    _until(listening, "window.tracks.length === 2")
    listening.wait_for_timeout(500)
    _idle(listening)


@pytest.mark.nightly
def test_of_two_microphones_chosen_in_a_row_the_last_is_heard_alone(listening):
    """Both together would be one noise."""
    listening.evaluate("window.hold()")
    _choose(listening, 1)
    _choose(listening, 2)
    listening.evaluate("window.release()")
    _until(listening, f"window.tracks.length === 3 && {OPEN} === 1")
    listening.click("#live-start")
    _idle(listening)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "first",
    [["live-pause"], ["live-pause", "live-pause"]],
    ids=["pause", "continue"],
)
def test_stop_right_behind_another_button_ends_it(listening, first):
    """And the page can be started again."""
    listening.evaluate(CLICK, [*first, "live-start"])
    _idle(listening)
    listening.click("#live-start")
    expect(listening.locator("#live-start")).to_have_text("Stop")
    expect(listening.locator("#live-time")).not_to_have_text("")
    listening.click("#live-start")
    _idle(listening)


@pytest.mark.nightly
def test_sound_that_the_system_stopped_goes_on(listening):
    """A call on a phone, a laptop that slept: the page says that it records, so it must."""
    listening.evaluate("window.contexts[0].suspend()")
    expect(listening.locator("#live-time")).to_have_text(re.compile("0:0[3-9]"))
    listening.click("#live-pause")
    listening.wait_for_timeout(300)
    assert listening.evaluate("window.contexts[0].state") == "suspended"
    listening.click("#live-start")
    _idle(listening)


@pytest.mark.nightly
def test_a_server_that_is_gone_before_the_start_is_reported_as_that(speaking, page_server):
    """The microphone's own script comes from the server too."""
    with Proxy(page_server.port) as proxy, speaking() as browser, opened(browser, proxy.base) as watched:
        watched.allowed += ["WebSocket connection", "Failed to load resource"]
        page = watched.page
        expect(page.locator("#server-word")).to_have_text("Ready")
        proxy.refusing = True
        proxy.cut()
        page.click("#live-start")
        expect(page.locator("#live-notice")).to_have_text(re.compile("server cannot be reached"))
        expect(page.locator("#live-start")).to_have_text("Start")


# A device that gives two channels, whatever it is asked for, with sound on the second alone.
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


@pytest.mark.nightly
def test_a_voice_on_the_second_channel_is_heard(speaking, page_server):
    """Sound cards with several sockets give all of them."""
    with speaking() as browser, opened(browser, page_server.base) as watched:
        page = watched.page
        page.add_init_script(SECOND_CHANNEL)
        page.reload()
        page.click("#live-start")
        expect(page.locator("#live-level")).to_have_attribute("aria-valuenow", re.compile("[5-9]."), timeout=10_000)
        page.click("#live-start")
        expect(page.locator("#live-start")).to_have_text("Start")
