"""A user reads recordings and live lines in another language, next to the original text, and as captions."""

import re

import pytest
from playwright.sync_api import expect

from asr_server.features.translation.conftest import ScriptedLlm, refusal
from E2Etest.browser.conftest import FINALS, file, opened
from E2Etest.browser.looking import looked_at
from E2Etest.browser.speech import Speech
from E2Etest.browser.storing import until, until_kept

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(300)]

WIDE = {"width": 1280, "height": 820}
BESIDE = """() => {
    const box = (selector) => document.querySelector(selector).getBoundingClientRect();
    return box(".line-translation").left >= box(".line-text").right;
}"""
LOOK = """() => {
    const of = name => getComputedStyle(document.getElementById(name));
    const box = document.getElementById("captions").getBoundingClientRect();
    const whole = box.width >= innerWidth && box.height >= innerHeight;
    const { color, backgroundColor } = of("captions");
    return [color, backgroundColor, parseFloat(of("captions-lines").fontSize) >= 28, whole];
}"""
# Notes the seconds of each sound that is played.
PLAYED = """
const clips = new Map();
const make = URL.createObjectURL.bind(URL);
URL.createObjectURL = blob => { const address = make(blob); clips.set(address, blob); return address; };
window.played = [];
HTMLMediaElement.prototype.play = async function () { window.played.push((clips.get(this.src).size - 44) / 32000); };
"""


def test_texts_are_translated_beside_what_was_said(browser, start, sample):
    """Rows of a file and finished lines are translated, in the store and in exports. A failure changes nothing."""
    with (
        ScriptedLlm() as llm,
        start(OPENAI_BASE_URL=llm.base_url, TRANSLATE_MODEL="scripted") as server,
        opened(browser, server.base, "files", viewport=WIDE) as watched,
    ):
        watched.allowed += ["Failed to load resource"]
        _translates_a_file(watched.page, sample)
        watched.page.add_init_script(PLAYED)
        watched.page.goto(f"{server.base}/?again#live")
        _translates_lines(watched.page, llm)


def _translates_a_file(page, sample):
    page.select_option("#files-target", "de")
    page.set_input_files("#files-input", [file("talk.wav", sample[0])])
    (talk,) = until_kept(page, lambda found: found and found[0]["rows"] and "translation" in found[0]["rows"][0])
    translation = talk["rows"][0]["translation"]
    expect(page.locator(".line-translation")).to_have_text(translation)
    until(page, BESIDE)
    assert looked_at(page, "reader-translated") == []
    page.click("#reader-export")
    with page.expect_download() as download:
        page.get_by_role("button", name="Text (txt)").click()
    assert download.value.path().read_text(encoding="utf-8") == f"{sample[1]}\n{translation}\n"


def _translates_lines(page, llm):
    """The page says that the endpoint does not answer. Playing a translated line plays the original speech."""
    page.select_option("#live-target", "de")
    speech = Speech(page)
    page.click("#live-start")
    expect(page.locator("#live-start")).to_have_text("Stop")
    speech.final("The lamp is on.")
    shown = page.locator("#live-lines .translation")
    expect(shown).to_have_text(re.compile(r"\w"))
    expect(shown).to_have_attribute("lang", "de")
    translation = shown.inner_text()
    llm.restart(lambda call: refusal(500))
    speech.final("And now it is off.")
    expect(page.locator("#live-translation")).to_have_text(re.compile("could not be translated"))
    speech.final("Good night.")
    expect(page.locator(f"{FINALS}:not(.translation)")).to_have_count(3)
    _reads_captions(page, speech)
    expect(page.locator("#live-time")).to_have_text(re.compile("0:(0[4-9]|[1-5])"))
    page.click("#live-start")
    rows = [("The lamp is on.", translation), ("And now it is off.", None), ("Good night.", None)]
    until_kept(page, lambda found: [(row["text"], row.get("translation")) for row in found[0]["rows"]] == rows)
    page.locator(".replay").nth(1).click()
    page.wait_for_timeout(500)
    (seconds,) = page.evaluate("window.played")
    assert 1 <= seconds <= 1.5


def _reads_captions(page, speech):
    """The last lines fill the window in white on black, the open line last, until Escape is pressed."""
    page.click("#live-captions")
    speech.partial("The open", " line")
    expect(page.locator("#captions-lines p").last).to_have_text("The open line")
    expect(page.locator("#captions-lines p").first).to_contain_text("The lamp is on.")
    assert page.evaluate(LOOK) == ["rgb(255, 255, 255)", "rgb(0, 0, 0)", True, True]
    page.keyboard.press("Escape")
    expect(page.locator("#captions")).to_be_hidden()
    expect(page.locator("#live-start")).to_have_text("Stop")
    speech.final("")
