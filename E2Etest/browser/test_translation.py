"""A user reads recordings and live lines in another language, next to the original text, and as captions."""

import pytest
from playwright.sync_api import expect

from E2Etest.browser.looking import LOOKED
from E2Etest.browser.person import FINALS, button, file, go, hides, opened, press, shows, until
from E2Etest.browser.speech import Speech
from E2Etest.browser.storing import TALK, until_kept

pytestmark = [LOOKED, pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(300)]

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


def test_texts_are_translated_beside_what_was_said(browser, page_server, sample, look):
    """Rows of a file and finished lines are translated, in the store and in exports. A failure changes nothing."""
    with opened(browser, page_server.base, "files", ["Failed to load resource"], script=PLAYED) as page:
        page.select_option("#files-target", "de")
        page.set_input_files("#files-input", [file("talk.wav", sample[0])])
        (talk,) = until_kept(page, lambda found: found and found[0]["rows"] and "translation" in found[0]["rows"][0])
        translation = talk["rows"][0]["translation"]
        shows(page, ".line-translation", translation)
        until(page, BESIDE)
        look(page, "reader-translated")
        page.click("#reader-export")
        with page.expect_download() as download:
            button(page, "Text (txt)").click()
        assert download.value.path().read_text(encoding="utf-8") == f"{sample[1]}\n{translation}\n"
        go(page, "live")
        page.select_option("#live-target", "de")
        speech = Speech(page)
        speech.final(TALK[0])
        shows(page, "#live-lines .translation", like=r"\w")
        expect(page.locator("#live-lines .translation")).to_have_attribute("lang", "de")
        translation = page.locator("#live-lines .translation").inner_text()
        page.route("**/translations", lambda route: route.fulfill(status=500))
        speech.final(TALK[1])
        shows(page, "#live-translation", like="could not be translated")
        for line in TALK[2:-1]:
            speech.final(line)
        shows(page, FINALS, TALK[:-1])
        # The last lines fill the window in white on black, the open line last, until Escape is pressed.
        page.click("#live-captions")
        speech.partial("And the lamp", " should stay on")
        expect(page.locator("#captions-lines p")).to_have_text([*TALK[2:5], "And the lamp should stay on"])
        assert page.evaluate(LOOK) == ["rgb(255, 255, 255)", "rgb(0, 0, 0)", True, True]
        look(page, "live-captions")
        press(page, "Escape")
        hides(page, "#captions")
        speech.final("")
        shows(page, "#live-time", like="0:(0[6-9]|[1-5])")
        page.click("#live-start")
        rows = [(TALK[0], translation), *((line, None) for line in TALK[1:-1])]
        until_kept(page, lambda found: [(row["text"], row.get("translation")) for row in found[0]["rows"]] == rows)
        # What is played of a translated line is the original speech.
        page.locator(".replay").nth(1).click()
        until(page, "() => window.played.length === 1")
        assert 1 <= page.evaluate("window.played[0]") <= 1.5


def test_what_was_said_is_seen_as_it_is_said_after_it_and_after_a_reload(browser, page_server, look):
    """Words that may change are gray. After a reload the page offers to continue."""
    with opened(browser, page_server.base) as page:
        for end in ("live-end", "live-interrupted"):
            speech = Speech(page)
            # The browser's own microphone is called a fake.
            page.evaluate("document.getElementById('live-device').selectedOptions[0].text = 'Desk microphone'")
            for line in TALK[:-1]:
                speech.final(line)
            shows(page, "#live-time", like="0:(0[2-9]|[1-5])")
            speech.partial("And the lamp at the door ", "should stay on")
            shows(page, "#live-lines li.open .grey", "should stay on")
            if end == "live-end":
                look(page, "live-lines")
                page.click("#live-start")
                shows(page, "#live-open")
            else:
                page.reload()
                shows(page, "#live-interrupted")
            shows(page, FINALS, TALK[:-1])
            look(page, end)
