"""The Live panel before a socket that the test answers: what it shows of lines, of the model and of the microphone."""

import re

import pytest
from playwright.sync_api import expect

from asr_server.engine.fake_script import FakeScript
from asr_server.features.translation.conftest import ScriptedLlm, refusal
from E2Etest.browser.conftest import PHONE, opened
from E2Etest.browser.looking import looked_at
from E2Etest.browser.speech import Speech
from E2Etest.browser.states import SCHEMES, SIZES
from E2Etest.browser.storing import TALK, kept

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LONG = "The lamp in the kitchen is on again. " * 40


def _start(page):
    speech = Speech(page)
    page.click("#live-start")
    expect(page.locator("#live-start")).to_have_text("Stop")
    expect(page.locator("#live-connection")).to_have_text("")
    return speech


def _stop(page):
    page.click("#live-start")
    expect(page.locator("#live-start")).to_have_text("Start")


def _below(page):
    return page.locator("#live-sheet").evaluate("s => s.scrollHeight - s.scrollTop - s.clientHeight")


@pytest.mark.nightly
def test_the_newest_line_stays_in_sight_and_a_reader_above_is_left_in_peace(beeping, page_server):
    """However tall the next line is. "Jump to latest" ends the reading."""
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        speech = _start(page)
        for _ in range(4):
            speech.final(LONG)
        expect(page.locator("#live-lines li")).to_have_count(4)
        assert _below(page) < 2
        expect(page.locator("#live-latest")).to_be_hidden()
        page.hover("#live-sheet")
        page.mouse.wheel(0, -900)
        expect(page.locator("#live-latest")).to_be_visible()
        at = page.evaluate("document.getElementById('live-sheet').scrollTop")
        speech.final(LONG)
        expect(page.locator("#live-lines li")).to_have_count(5)
        assert page.evaluate("document.getElementById('live-sheet').scrollTop") == at
        page.click("#live-latest")
        expect(page.locator("#live-latest")).to_be_hidden()
        speech.final(LONG)
        expect(page.locator("#live-lines li")).to_have_count(6)
        assert _below(page) < 2


@pytest.mark.nightly
def test_what_is_behind_is_counted_while_nothing_arrives(beeping, page_server):
    """From ten seconds on the server is called too slow, until words come again."""
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        page.clock.install()
        speech = _start(page)
        speech.partial("turn on")
        expect(page.locator("#live-lag")).to_have_text("0.0 s behind")
        page.clock.run_for(6_000)
        expect(page.locator("#live-lag")).to_have_text(re.compile(r"^[56]\.\d s behind"))
        expect(page.locator("#live-slow")).to_be_hidden()
        page.clock.run_for(6_000)
        expect(page.locator("#live-slow")).to_contain_text("The server is too slow for live speech")
        speech.final("turn on the lights")
        expect(page.locator("#live-slow")).to_be_hidden()
        expect(page.locator("#live-lag")).to_have_text("0.0 s behind")


@pytest.mark.nightly
def test_a_new_recording_leaves_the_last_one_in_the_list(beeping, page_server):
    """Both are kept, each with its words."""
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        for words in ("The first one.", "The second one."):
            speech = _start(page)
            speech.final(words)
            expect(page.locator("#live-lines p")).to_have_text([words])
            _stop(page)
            expect(page.locator("#live-connection")).to_contain_text("Saved to Transcripts")
        found = kept(page)
        assert [row["text"] for one in found for row in one["rows"]] == ["The second one.", "The first one."]
        assert [one["state"] for one in found] == ["complete", "complete"]


@pytest.mark.nightly
def test_a_recording_without_words_is_removed_unless_it_is_wanted(beeping, page_server):
    """The list is not filled with silence, and still nothing is lost without a question."""
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        _start(page)
        expect(page.locator("#live-time")).to_have_text("0:01")
        _stop(page)
        toast = page.locator(".toast", has_text="No words were heard")
        expect(toast).to_be_visible()
        assert kept(page) == []
        toast.get_by_text("Keep it").click()
        expect(toast).to_have_count(0)
        page.wait_for_timeout(200)
        (found,) = kept(page)
        assert found["seconds"] > 0.8


@pytest.mark.nightly
def test_on_a_phone_nothing_lies_behind_the_controls(beeping, page_server):
    """What can be pressed is what is seen there, with a long text too."""
    with opened(beeping, page_server.base, viewport=PHONE) as watched:
        page = watched.page
        speech = _start(page)
        for _ in range(3):
            speech.final(LONG)
        _stop(page)
        for name in ("live-open", "live-copy", "live-start", "live-captions"):
            box = page.locator(f"#{name}").bounding_box()
            x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            assert y < PHONE["height"]
            assert page.evaluate(
                "([x, y, id]) => document.elementFromPoint(x, y)?.closest('button, a')?.id === id", [x, y, name]
            ), name


@pytest.mark.nightly
def test_every_panel_and_the_tab_of_the_browser_show_an_open_microphone(beeping, page_server):
    """A red dot with the time, until the recording ends."""
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        icon = "document.querySelector('link[rel~=icon]').href.split('/').at(-1)"
        title = "Live · Speech to text"
        _start(page)
        for panel in ("files", "transcripts", "status"):
            page.click(f"#tab-{panel}")
            expect(page.locator("#recording")).to_be_visible()
            expect(page.locator("#recording-time")).to_have_text(re.compile(r"^0:\d\d$"))
        expect(page).to_have_title(re.compile(r"^● 0:\d\d · Status · "))
        assert page.evaluate(icon) == "icon-recording.svg"
        page.click("#recording")
        expect(page.locator("#live")).to_be_visible()
        page.click("#live-pause")
        expect(page).to_have_title(re.compile(rf"^‖ 0:\d\d · {title}$"))
        assert page.evaluate(icon) == "icon.svg"
        _stop(page)
        expect(page).to_have_title(title)
        expect(page.locator("#recording")).to_be_hidden()


@pytest.mark.nightly
def test_captions_fill_the_window_with_the_last_lines_until_escape(beeping, page_server):
    """White on black, in type that can be read from afar, the open line last."""
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        speech = _start(page)
        for number in range(6):
            speech.final(f"Line {number}.")
        page.click("#live-captions")
        speech.partial("The open", " line")
        shown = page.locator("#captions-lines p")
        expect(shown).to_have_text(["Line 3.", "Line 4.", "Line 5.", "The open line"])
        look = page.evaluate(
            """() => {
                const of = name => getComputedStyle(document.getElementById(name));
                const box = document.getElementById("captions").getBoundingClientRect();
                const size = parseFloat(of("captions-lines").fontSize);
                const { color, backgroundColor } = of("captions");
                return [color, backgroundColor, size, box.width >= innerWidth, box.height >= innerHeight];
            }"""
        )
        assert look[:2] == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
        assert look[2] >= 28
        assert look[3:] == [True, True]
        page.keyboard.press("Escape")
        expect(page.locator("#captions")).to_be_hidden()
        expect(page.locator("#live-start")).to_have_text("Stop")


@pytest.mark.nightly
def test_finished_lines_are_translated_and_a_failure_leaves_them_as_they_are(beeping, start):
    """The translation is below its line and in the store; without an endpoint that answers, the page says so."""
    with ScriptedLlm() as llm:
        settings = {"OPENAI_BASE_URL": llm.base_url, "TRANSLATE_MODEL": "scripted"}
        with start(**settings) as server, opened(beeping, server.base) as watched:
            watched.allowed += ["Failed to load resource"]
            page = watched.page
            page.select_option("#live-target", "de")
            speech = _start(page)
            speech.final("The lamp is on.")
            expect(page.locator("#live-lines .translation")).to_have_text(re.compile(r"\w"))
            expect(page.locator("#live-lines .translation")).to_have_attribute("lang", "de")
            translation = page.inner_text("#live-lines .translation")
            llm.restart(lambda call: refusal(500))
            speech.final("And now it is off.")
            expect(page.locator("#live-translation")).to_have_text(re.compile("could not be translated"))
            speech.final("Good night.")
            expect(page.locator("#live-lines li:not(.open) p:not(.translation)")).to_have_count(3)
            _stop(page)
            expect(page.locator("#live-open")).to_be_visible()
            (found,) = kept(page)
            rows = [(row["text"], row.get("translation")) for row in found["rows"]]
            assert rows == [("The lamp is on.", translation), ("And now it is off.", None), ("Good night.", None)]


@pytest.mark.nightly
def test_a_line_is_played_as_it_was_said(beeping, page_server):
    """From the kept sound, and no longer than the line."""
    watch = """
        const clips = new Map();
        const make = URL.createObjectURL.bind(URL);
        URL.createObjectURL = blob => { const address = make(blob); clips.set(address, blob); return address; };
        window.played = [];
        HTMLMediaElement.prototype.play = async function () {
            window.played.push((clips.get(this.src).size - 44) / 32000);
        };
    """
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        page.add_init_script(watch)
        page.reload()
        speech = _start(page)
        speech.final("The first second.")
        speech.final("The second one.")
        expect(page.locator("#live-time")).to_have_text("0:03")
        expect(page.locator(".replay").first).to_be_hidden()
        _stop(page)
        page.locator(".replay").nth(1).click()
        page.wait_for_timeout(500)
        (seconds,) = page.evaluate("window.played")
        assert 1 <= seconds <= 1.5


@pytest.mark.nightly
def test_a_model_that_cannot_be_loaded_is_not_said_to_listen(beeping, start):
    """The panel names the model and says that no words will come."""
    with start(script=FakeScript(load_failures=1000), PRELOAD="true") as server:
        server.wait_for(lambda health: health["model_state"] == "failed")
        with opened(beeping, server.base) as watched:
            watched.allowed += ["WebSocket connection", "Failed to load resource"]
            page = watched.page
            expect(page.locator("#live-model")).to_have_text(re.compile("demo could not be loaded: .+"))
            Speech(page)
            page.click("#live-start")
            expect(page.locator("#live-empty")).to_have_text(re.compile("could not be loaded"))


@pytest.mark.nightly
def test_a_browser_whose_sound_never_starts_says_so(beeping, page_server):
    """As Firefox without a sound output: its context stays suspended, and no promise of it is ever kept."""
    never = """
        delete AudioContext.prototype.setSinkId;
        AudioContext.prototype.resume = () => new Promise(() => {});
        Object.defineProperty(BaseAudioContext.prototype, "state", { get: () => "suspended" });
    """
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        page.add_init_script(never)
        page.reload()
        page.click("#live-start")
        expect(page.locator("#live-start")).to_have_text("Starting…")
        expect(page.locator("#live-notice")).to_have_text(re.compile("sound output"))
        expect(page.locator("#live-start")).to_have_text("Start")
        assert kept(page) == []


@pytest.mark.nightly
def test_with_a_full_disk_the_recording_goes_on_and_says_so(beeping, page_server):
    """The text is still kept, of the sound its beginning."""
    full = """
        window.quota = 1e9;
        navigator.storage.estimate = async () => ({ usage: 0, quota: window.quota });
    """
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        page.add_init_script(full)
        page.reload()
        speech = _start(page)
        expect(page.locator("#live-time")).to_have_text("0:03")
        page.evaluate("window.quota = 1000")
        expect(page.locator("#live-kept")).to_have_text(re.compile("not saved"))
        speech.final("Still here.")
        expect(page.locator("#live-lines p")).to_have_text(["Still here."])
        _stop(page)
        expect(page.locator("#live-open")).to_be_visible()
        (found,) = kept(page)
        assert [row["text"] for row in found["rows"]] == ["Still here."]
        assert 1 <= found["seconds"] < found["durationS"]


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_while_it_records_and_afterwards(beeping, page_server, size, scheme, shots):
    """With lines, as captions, paused, with its end, and interrupted."""
    found = {}
    with opened(beeping, page_server.base, viewport=SIZES[size], color_scheme=scheme) as watched:
        page = watched.page
        page.on("dialog", lambda dialog: dialog.accept())

        def check(name):
            # The browser's own microphone is called a fake.
            page.evaluate("document.getElementById('live-device').selectedOptions[0].text = 'Desk microphone'")
            found[name] = looked_at(page, shots, f"live-{name}-{size}-{scheme}")

        for end in ("stop", "reload"):
            speech = _start(page)
            for line in TALK[:-1]:
                speech.final(line)
            expect(page.locator("#live-time")).to_have_text("0:06")
            speech.partial("And the lamp at the door ", "should stay on")
            expect(page.locator("#live-lines li.open")).to_have_count(1)
            if end == "reload":
                page.reload()
                expect(page.locator("#live-interrupted")).to_be_visible()
                check("interrupted")
                continue
            check("lines")
            page.click("#live-captions")
            check("captions")
            page.keyboard.press("Escape")
            page.click("#live-pause")
            check("paused")
            _stop(page)
            check("end")
    assert found == {name: [] for name in ("lines", "captions", "paused", "end", "interrupted")}
