"""The page says what keeps the server from working, and continues where it stopped."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from asr_server_fake.script import FakeScript
from E2Etest.browser.conftest import file, opened
from E2Etest.browser.looking import looked_at
from E2Etest.browser.states import answer_health, claim
from E2Etest.browser.storing import kept, until_kept
from E2Etest.drive import recordings
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SLOW = FakeScript(step_s=0.15)
STATES = (
    ({"model_on_disk": False}, "not on the server's disk", "No model yet"),
    ({"model_on_disk": False, "model_state": "loading"}, "being loaded", "Loading model"),
    ({"model_state": "loading", "downloaded_mb": 512}, "being downloaded: 512 MiB", "Loading model"),
    ({"model_state": "failed", "model_error": "No network.", "status": "degraded"}, "nothing can be", "No model"),
    ({"status": "draining"}, "shutting down", "Shutting down"),
)
HIDDEN = """() => {
    Object.defineProperty(document, "hidden", { get: () => true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
# As Firefox without a sound output: its context stays suspended, and no promise of it is ever kept.
NO_SOUND = """
    delete AudioContext.prototype.setSinkId;
    AudioContext.prototype.resume = () => new Promise(() => {});
    Object.defineProperty(BaseAudioContext.prototype, "state", { get: () => "suspended" });
"""


@pytest.mark.slow("waits until the page asks again for a server that was gone")
def test_status_says_how_the_server_is(browser, page_server):
    """The panel has a sentence, then charts. The model and the options are folded away."""
    health = page_server.health()
    with Proxy(page_server.port) as proxy, opened(browser, proxy.base, "status") as watched:
        watched.allowed += ["Failed to load resource"]
        page = watched.page
        expect(page.locator("#status-sentence")).to_have_text("Server ready, idle")
        expect(page.locator("#status-model")).to_contain_text(health["model_id"])
        expect(page.locator("#status-charts svg")).to_have_count(2)
        expect(page.locator("#status-facts")).to_be_hidden()
        page.click("#status summary >> nth=0")
        for fact in ("in memory", health["version"], health["speech_model"]):
            expect(page.locator("#status-facts")).to_contain_text(fact)
        active = [option for option in health["plan"] if option["active"]]
        expect(page.locator("#status-plan tr")).to_have_count(len(active))
        for option in active:
            expect(page.locator("#status-plan")).to_contain_text(option["reason"])
        expect(page.locator("#status-off tr")).to_have_count(len(health["plan"]) - len(active))
        expect(page.locator("#status-off tr").first).to_be_hidden()
        proxy.refusing = True
        proxy.cut()
        expect(page.locator("#status-notice")).to_have_text(re.compile("cannot be reached"))
        expect(page.locator("#server-word")).to_have_text("Unreachable")
        proxy.refusing = False
        expect(page.locator("#server-word")).to_have_text("Ready")
        expect(page.locator("#status-notice")).to_be_hidden()


@pytest.mark.nightly
def test_what_stops_is_reported_and_goes_on(browser, page_server, start):
    """The causes are a server that cannot transcribe or does not answer, a browser without sound, and uploads that
    break off or are cancelled."""
    with opened(browser, page_server.base, "status") as watched:
        watched.allowed += ["Failed to load resource"]
        _says_what_keeps_it_from_hearing(watched.page, page_server.health())
        _asks_only_while_somebody_looks(watched.page)
    with opened(browser, page_server.base) as watched:
        page = watched.page
        page.add_init_script(NO_SOUND)
        page.reload()
        page.click("#live-start")
        expect(page.locator("#live-notice")).to_have_text(re.compile("sound output"))
        expect(page.locator("#live-start")).to_have_text("Start")
        assert kept(page) == []
    with start(MAX_BATCH="1", PRELOAD="true") as server:
        server.wait_for(lambda health: health["model_loaded"])
        for goes_on in (_shows_a_file_while_it_is_transcribed, _reloads_and_continues, _cancels_and_tries_again):
            server.replace_script(SLOW)
            with opened(browser, server.base, "files") as watched:
                watched.allowed += ["Failed to load resource", "ERR_"]
                # An aligner would wait until all spans are transcribed.
                claim(watched.page, server.health(), "aligner", active=False)
                goes_on(watched.page, server)


def _says_what_keeps_it_from_hearing(page, health):
    """The sentence and the head of the page give the reason of a failure."""
    for change, sentence, word in STATES:
        changed = health | {"model_loaded": False, "model_state": "unloaded"} | change
        answer_health(page, changed)
        expect(page.locator("#status-sentence")).to_contain_text(sentence)
        expect(page.locator("#server-word")).to_have_text(word)
        expect(page.locator("#status-reason")).to_have_text(changed["model_error"])
    page.unroute_all()


def _asks_only_while_somebody_looks(page):
    """A page in the background sends no requests. A page without an answer does not call the server ready."""
    page.reload()
    expect(page.locator("#server-word")).to_have_text("Ready")
    with page.expect_request("**/health"):
        pass  # asked again by itself
    page.route("**/health", lambda _: None)
    expect(page.locator("#server-word")).to_have_text("Unreachable")
    page.evaluate(HIDDEN)
    page.wait_for_timeout(500)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(7000)  # more than two rounds
    assert asked == []


def _gives(page, *names):
    """Upload the sample: three times, with pauses between, if the name begins with "talk"; otherwise once."""
    once, pause = recordings.samples(), np.zeros(6 * 16_000, np.int16)
    three = np.concatenate([once, pause] * 3)
    page.set_input_files(
        "#files-input", [file(name, recordings.wav(three if name.startswith("talk") else once)) for name in names]
    )


def _text(transcript):
    return " ".join(row["text"] for row in transcript["rows"])


def _shows_a_file_while_it_is_transcribed(page, _):
    """The reader opens at once, with a player, and shows the first words before the last ones arrive."""
    _gives(page, "talk.wav")
    expect(page).to_have_url(re.compile("#t/"))
    for part in ("sound", "progress", "cancel"):
        expect(page.locator(f"#reader-{part}")).to_be_visible()
    expect(page.locator("#reader-rows")).to_contain_text("kitchen")
    expect(page.locator("#reader-state-text")).to_have_text(
        re.compile(r"Transcribing, 0:0\d of 0:\d\d · about \d+ \w+ left")
    )
    assert float(page.locator("#reader-progress").get_attribute("value")) > 0.1
    assert len(kept(page)[0]["rows"]) < 3
    assert looked_at(page, "reader-progress") == []
    until_kept(page, lambda found: found[0]["state"] == "complete" and len(found[0]["rows"]) >= 3)


def _reloads_and_continues(page, server):
    """The page keeps the rows that it had, and transcribes the rest from the stored sound."""
    words = recordings.sample()[1]
    _gives(page, "talk.wav", "next.wav", "last.wav")
    until_kept(page, lambda found: len(found) == 3 and found[-1]["rows"] and all(one["sound"] for one in found))
    page.reload()
    talk = until_kept(page, lambda found: all(one["state"] in ("cut", "complete") for one in found))[-1]
    assert talk["state"] == "cut"
    assert words.startswith(_text(talk)[:20])
    server.replace_script(FakeScript())
    expect(page.locator("#files-interrupted-text")).to_have_text(re.compile("when the page was closed"))
    page.click("#files-continue")
    expect(page.locator("#files-summary")).to_have_text(re.compile(r"(\d) of \1 files? finished"))
    found = kept(page)[::-1]
    assert (found[0]["id"], found[0]["rows"][: len(talk["rows"])]) == (talk["id"], talk["rows"])
    assert [(one["state"], _text(one)) for one in found] == [
        ("complete", " ".join([words] * 3)),
        *[("complete", words)] * 2,
    ]


def _cancels_and_tries_again(page, server):
    """Cancel ends the request. A second try continues after the last words."""
    items = page.locator("#files-queue li")
    _gives(page, "talk.wav", "b.wav", "talk too.wav")
    page.get_by_role("button", name="Cancel talk too.wav").click()
    until_kept(page, lambda found: found and found[-1]["rows"])
    page.get_by_role("button", name="Cancel talk.wav").click()
    for at in (0, 2):
        expect(items.nth(at)).to_contain_text("Cancelled")
    talk = until_kept(page, lambda found: len(found) == 2 and found[-1]["state"] == "cut")[-1]
    assert talk["error"]["code"] == "cancelled"
    server.wait_for(lambda health: health["queue"]["running"] == 0)
    server.replace_script(FakeScript())
    page.get_by_role("button", name="Transcribe talk.wav again").click()
    expect(items.nth(0)).to_contain_text("Finished")
    (again,) = [one for one in kept(page) if one["title"] == "talk"]
    assert (again["id"], again["state"], len(again["rows"])) == (talk["id"], "complete", 3)
    page.click("#files-clear")
    expect(page.locator("#files-work")).to_be_hidden()
    assert len(kept(page)) == 2
