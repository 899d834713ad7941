"""A user sees who said what, in recordings and live, and corrects it."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from asr_server_fake.script import Rule
from E2Etest.browser.looking import LOOKED
from E2Etest.browser.person import button, claim, file, go, opened, press, shows
from E2Etest.browser.speech import Speech
from E2Etest.browser.storing import kept, stored, texts, until_kept, words_of
from E2Etest.drive import recordings
from E2Etest.speakers import conversations

pytestmark = [LOOKED, pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(300)]

NAMES = "#reader-rows .speaker"


def test_speakers_are_shown_named_and_corrected(browser, page_server, scripted, look):
    """Names are changed in a menu, with undo. In live sessions the server may correct a speaker later."""
    scripted(rules=(Rule(text=" ".join(f"word{number}" for number in range(40))),))
    with opened(browser, page_server.base, "files") as page:
        for channels in (1, 2):
            _names_the_speakers_of_a_file(page, channels)
        _gives_lines_to_others(page, look)
        page.goto(f"{page_server.base}/#live")
        claim(page, page_server.health(), "speakers", active=True)
        _speaks_in_turns(page, look)


def _names_the_speakers_of_a_file(page, channels):
    """Speakers are found by voice or by channel. A name applies to all rows of its speaker."""
    talk = conversations.conversation(seed=3, speakers=2, seconds=40)
    track = talk.mono()[None] if channels == 1 else talk.channels()
    wav = recordings.wav((track * 32_767).astype(np.int16).T.reshape(-1), channels=channels)
    page.select_option("#files-speakers", "2")
    page.set_input_files("#files-input", [file("talk.wav", wav)])
    found = until_kept(page, lambda found: len(found) == channels and found[0]["state"] == "complete")[0]
    rows = found["rows"]
    assert {row["speaker"] for row in rows} == set(found["speakers"]) == {"A", "B"}
    assert [row["start"] for row in rows] == sorted(row["start"] for row in rows)
    turns = "".join(row["speaker"] for i, row in enumerate(rows) if not i or row["speaker"] != rows[i - 1]["speaker"])
    shows(page, NAMES, [f"Speaker {who}" for who in turns])
    colours = page.locator(NAMES).evaluate_all("all => all.map(one => getComputedStyle(one).color)")
    assert colours[0] != colours[1]
    button(page, "Speaker A").click()
    expect(page.get_by_role("textbox", name="Name of the speaker")).to_be_focused()
    page.keyboard.type("Maria")
    press(page, "Enter")
    shows(page, NAMES, ["Maria" if who == "A" else f"Speaker {who}" for who in turns])
    assert kept(page)[0]["speakers"] == {"A": "Maria", "B": ""}
    page.click("#tab-files")


def _has(page, names, speakers):
    """Wait until these names are shown, and these speakers stored."""
    shows(page, NAMES, names)
    until_kept(page, lambda found: [row["speaker"] for row in found[0]["rows"]] == list(speakers))


def _gives_lines_to_others(page, look):
    """A line gets another speaker, and a speaker is merged into another. Each is one step to undo."""
    lines = (("Good morning.", 0, "A"), ("Hello.", 2, "B"), ("Well, then.", 4, "A"))
    segments = [words_of(text, start_s=at, speaker=who) for text, at, who in lines]
    go(page, f"t/{stored(page, segments, speakers={'A': 'Maria', 'B': ''})}")
    _has(page, ["Maria", "Speaker B", "Maria"], "ABA")
    menu = page.locator(".speaker-menu")
    third = page.locator("#reader-rows .line").nth(2).get_by_role("button", name=re.compile("Maria|Speaker"))
    third.focus()
    press(page, "Enter")
    look(page, "speakers-menu")
    button(menu.get_by_role("group", name="This line was said by"), "Speaker B").click()
    _has(page, ["Maria", "Speaker B"], "ABB")
    expect(third).to_be_focused()
    third.click()
    button(menu, "New speaker").click()
    _has(page, ["Maria", "Speaker B", "Speaker C"], "ABC")
    page.locator(NAMES).nth(1).click()
    button(menu.get_by_role("group", name="Speaker B is the same person as"), "Maria").click()
    _has(page, ["Maria", "Speaker C"], "AAC")
    page.locator(".toast").get_by_text("Undo").click()
    _has(page, ["Maria", "Speaker B", "Speaker C"], "ABC")
    page.click("#reader-undo")
    _has(page, ["Maria", "Speaker B"], "ABB")
    page.click("#reader-undo")
    _has(page, ["Maria", "Speaker B", "Maria"], "ABA")


def _run(speaker, text):
    return {"speaker": speaker, "text": text}


def _speaks_in_turns(page, look):
    """Each turn has its speaker's name, in the captions too. Later corrections are kept."""
    page.check("#live-speakers")
    speech = Speech(page)
    expect(page.locator("#live-speakers")).to_be_disabled()
    whole, update = "I think so no you do", {"type": "speaker_update", "utterance": 1}
    runs = [_run("A", "I think so"), _run("B", " no you do")]
    speech.final(whole, speakers=[_run(None, whole)], speakers_settled=False)
    speech.send(update | {"speakers": [_run("A", whole)], "speakers_settled": False})
    shows(page, "#live-lines .speaker", ["Speaker A"])
    speech.send(update | {"speakers": runs, "speakers_settled": True})
    speech.final("Yes", speakers=[_run("B", "Yes")], speakers_settled=True)
    shows(page, "#live-lines .speaker", ["Speaker A", "Speaker B"])
    page.locator("#live-lines .speaker").nth(1).click()
    page.keyboard.type("Tom")
    press(page, "Enter")
    page.click("#live-captions")
    shows(page, "#captions-lines p", ["Speaker A: I think so", "Tom: no you do", "Yes"])
    press(page, "Escape")
    for who in "CDEFGH":
        speech.final("A turn.", speakers=[_run(who, "A turn.")], speakers_settled=True)
    expect(page.locator("#live-lines .speaker")).to_have_count(8)
    look(page, "speakers-live")
    page.click("#live-start")
    page.click("#live-open")
    _has(page, ["Speaker A", "Tom", *(f"Speaker {who}" for who in "CDEFGH")], "ABCDEFGH")
    found = kept(page)[0]
    assert texts(found)[:2] == ["I think so", "no you do Yes"]  # the lines of a speaker become a paragraph
    assert found["speakers"] == {"A": "", "B": "Tom", **dict.fromkeys("CDEFGH", "")}
