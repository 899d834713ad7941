"""Who said what: the page before a server that is scripted by the test, in files, in the reader and live."""

import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from asr_server.engine.fake_script import FakeScript, Rule
from E2Etest import recordings
from E2Etest.browser.conftest import PHONE, opened
from E2Etest.browser.looking import looked_at
from E2Etest.browser.speech import Speech
from E2Etest.browser.states import SCHEMES, SIZES
from E2Etest.browser.storing import conversation, hum, kept, rows_of, stored, until, words_of
from E2Etest.speakers import conversations

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(300)]

WIDE = {"width": 1280, "height": 820}
FIELDS = """window.sent = [];
const send = XMLHttpRequest.prototype.send;
XMLHttpRequest.prototype.send = function (form) {
    window.sent.push(Object.fromEntries([...form].filter(([, value]) => typeof value === "string")));
    send.call(this, form);
};"""


def _with_speakers(page, server):
    """The server says that it tells speakers apart."""
    health = server.health()
    plan = [option for option in health["plan"] if option["name"] != "speakers"]
    plan.append({"name": "speakers", "active": True, "value": "embedded", "reason": ""})
    page.route("**/health", lambda route: route.fulfill(json=health | {"plan": plan}))


def _answering(page, segments):
    """The server answers a file with these segments."""
    chunks = [
        segment | {"language": "English", "is_final": False, "chunk_index": i, "complete": True}
        for i, segment in enumerate(segments)
    ]
    whole = {"text": "", "language": "English", "is_final": True, "complete": True, "end": 30.0}
    events = [{"duration": 30.0}, *chunks, whole, {"done": True}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    page.route(
        "**/v1/audio/transcriptions/stream", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )


def _names(page):
    return page.locator("#reader-rows .speaker").all_inner_texts()


def _open(page, transcript):
    page.evaluate("id => { location.hash = `#t/${id}`; }", transcript)
    expect(page.locator("#reader-rows .line").first).to_be_visible()


def _stored_speakers(page, transcript, wanted):
    """Wait until the rows have these speakers."""
    until(
        page,
        """async ([id, wanted]) => {
            const rows = await (await pageModule('store.js')).store.rows(id);
            return JSON.stringify(rows.map(row => row.speaker)) === JSON.stringify(wanted);
        }""",
        [transcript, wanted],
    )


def test_the_speakers_of_a_file_are_shown_and_named(browser, page_server, sample):
    """Asked for with their number; text that came before its speakers has them in the end, and a name counts for all
    rows of its speaker, in the store too."""
    first, second, third = (
        words_of(text, start_s=at) for text, at in (("Good morning.", 0), ("Hello.", 2), ("Well, then.", 4))
    )
    labels = [{**s, "speaker": who} for s, who in ((first, "A"), (second, "B"), (third, "A"))]
    with opened(browser, page_server.base, "files", viewport=WIDE) as watched:
        page = watched.page
        page.add_init_script(FIELDS)
        _with_speakers(page, page_server)
        _answering(page, [words_of("Good morning.", start_s=0), second, third, *labels])
        page.reload()
        expect(page.locator("#files-speakers-field")).to_be_visible()
        page.select_option("#files-speakers", "2")
        page.set_input_files("#files-input", [{"name": "talk.wav", "mimeType": "audio/wav", "buffer": sample[0]}])
        expect(page.locator("#reader-rows .speaker")).to_have_text(["Speaker A", "Speaker B", "Speaker A"])
        (sent,) = page.evaluate("window.sent")
        assert (sent["speakers"], sent["num_speakers"]) == ("true", "2")
        colours = page.locator("#reader-rows .speaker").evaluate_all(
            "all => all.map(one => getComputedStyle(one).color)"
        )
        assert colours[0] == colours[2] != colours[1]
        page.get_by_role("button", name="Speaker A").first.click()
        expect(page.get_by_role("textbox", name="Name of the speaker")).to_be_focused()
        page.keyboard.type("Maria")
        page.keyboard.press("Enter")
        expect(page.locator("#reader-rows .speaker")).to_have_text(["Maria", "Speaker B", "Maria"])
        (found,) = kept(page)
        assert found["speakers"] == {"A": "Maria", "B": ""}
        assert [(row["speaker"], row["text"]) for row in found["rows"]] == [
            ("A", "Good morning."),
            ("B", "Hello."),
            ("A", "Well, then."),
        ]


@pytest.mark.parametrize("channels", [1, 2])
def test_two_people_of_a_real_recording_are_told_apart(browser, start, channels):
    """By their voices, and by their channels: nothing of the server is scripted but the words."""
    words = " ".join(f"word{number}" for number in range(40))
    talk = conversations.conversation(seed=3, speakers=2, seconds=40)
    track = talk.mono()[None] if channels == 1 else talk.channels()
    wav = recordings.wav((track * 32_767).astype(np.int16).T.reshape(-1), channels=channels)
    script = FakeScript(rules=(Rule(text=words),))
    with start(script=script) as server, opened(browser, server.base, "files", viewport=WIDE) as watched:
        page = watched.page
        page.select_option("#files-speakers", "2")
        page.set_input_files("#files-input", [{"name": "talk.wav", "mimeType": "audio/wav", "buffer": wav}])
        expect(page.locator("#reader-rows .speaker").first).to_be_visible()
        until(page, "async () => (await (await pageModule('store.js')).store.list())[0].state === 'complete'")
        (found,) = kept(page)
        rows = found["rows"]
        assert {row["speaker"] for row in rows} == set(found["speakers"]) == {"A", "B"}
        assert [row["start"] for row in rows] == sorted(row["start"] for row in rows)
        changes = [row["speaker"] for i, row in enumerate(rows) if not i or row["speaker"] != rows[i - 1]["speaker"]]
        assert page.locator("#reader-rows .speaker").all_inner_texts() == [f"Speaker {speaker}" for speaker in changes]


def test_a_server_that_tells_nobody_apart_is_not_asked_to(browser, page_server, sample):
    """Neither panel has the choice, and no field is sent."""
    with opened(browser, page_server.base, "files") as watched:
        page = watched.page
        page.add_init_script(FIELDS)
        health = page_server.health()
        plan = [option for option in health["plan"] if option["name"] != "speakers"]
        page.route("**/health", lambda route: route.fulfill(json=health | {"plan": plan}))
        page.reload()
        expect(page.locator("#files-limits")).to_have_text(re.compile("MB"))
        expect(page.locator("#files-speakers-field")).to_be_hidden()
        expect(page.locator("#live-speakers-field")).to_be_hidden()
        page.set_input_files("#files-input", [{"name": "talk.wav", "mimeType": "audio/wav", "buffer": sample[0]}])
        expect(page.locator("#reader-rows")).to_contain_text("kitchen")
        (sent,) = page.evaluate("window.sent")
        assert set(sent) & {"speakers", "num_speakers"} == set()


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["desk", "phone"])
def test_a_line_is_given_to_another_speaker_and_two_become_one(browser, page_server, viewport):
    """By the menu at the name, or at a line without one; each is one step to undo."""
    segments = conversation()
    for i, segment in enumerate(segments):
        segment["speaker"] = "AAB"[i % 3]
    spoken = ["A", "A", "B", "A", "A", "B"]
    with opened(browser, page_server.base, "transcripts", viewport=viewport) as watched:
        page = watched.page
        made = stored(page, segments, speakers={"A": "Maria", "B": ""})
        assert [row["speaker"] for row in rows_of(page, made)] == spoken
        _open(page, made)
        assert _names(page) == ["Maria", "Speaker B", "Maria", "Speaker B"]
        second = page.locator("#reader-rows .line").nth(1)
        second.get_by_role("button", name="Maria").focus()
        page.keyboard.press("Enter")
        menu = page.locator(".speaker-menu")
        menu.get_by_role("group", name="This line was said by").get_by_role("button", name="Speaker B").click()
        assert _names(page) == ["Maria", "Speaker B", "Maria", "Speaker B"]
        expect(second.locator(".speaker")).to_be_focused()
        given = ["A", "B", "B", "A", "A", "B"]
        _stored_speakers(page, made, given)
        second.locator(".speaker").click()
        menu.get_by_role("button", name="New speaker").click()
        _stored_speakers(page, made, ["A", "C", "B", "A", "A", "B"])
        assert _names(page) == ["Maria", "Speaker C", "Speaker B", "Maria", "Speaker B"]
        page.locator("#reader-rows .speaker").nth(2).click()
        menu.get_by_role("group", name="Speaker B is the same person as").get_by_role("button", name="Maria").click()
        _stored_speakers(page, made, ["A", "C", "A", "A", "A", "A"])
        assert _names(page) == ["Maria", "Speaker C", "Maria"]
        page.locator(".toast").get_by_text("Undo").click()
        _stored_speakers(page, made, ["A", "C", "B", "A", "A", "B"])
        for before in (given, spoken):
            page.click("#reader-undo")
            _stored_speakers(page, made, before)
        assert _names(page) == ["Maria", "Speaker B", "Maria", "Speaker B"]
        page.click("#reader-redo")
        _stored_speakers(page, made, given)


def test_speakers_that_come_while_a_line_is_edited_neither_end_that_nor_lose_it(browser, page_server):
    """The text that is typed stays; a line that is split elsewhere ends being edited and is not there twice."""
    text = "Turn on the lights and the music"
    with opened(browser, page_server.base, "transcripts", viewport=WIDE) as watched:
        page = watched.page
        made = stored(page, [words_of(text)], hum(10), durationS=10)
        (row,) = rows_of(page, made)
        _open(page, made)
        page.locator(".line .edit").first.click()
        page.keyboard.type(" now")
        put = "async ([id, rows]) => (await pageModule('store.js')).store.putRows(id, rows)"
        until(
            page,
            "async id => (await (await pageModule('store.js')).store.rows(id))[0].text.endsWith(' now')",
            made,
        )
        (typed,) = rows_of(page, made)
        page.evaluate(put, [made, [typed | {"speaker": "A"}]])
        expect(page.locator(".speaker")).to_have_text(["Speaker A"])
        page.keyboard.type(" and then")
        page.keyboard.press("Escape")
        _stored_speakers(page, made, ["A"])
        assert rows_of(page, made)[0]["text"] == f"{text} now and then"
        page.locator(".line .edit").first.click()
        del row["words"]
        halves = [row | {"text": "Turn on the lights"}, row | {"text": "and the music", "n": row["n"] + 9}]
        page.evaluate(put, [made, halves])
        expect(page.locator(".line-text")).to_have_text(["Turn on the lights", "and the music"])
        expect(page.locator(".line-text[contenteditable]")).to_have_count(0)
        expect(page.locator("#reader-undo")).to_be_disabled()


def _run(speaker, text):
    return {"speaker": speaker, "text": text}


def _refine(speech, speakers, *, settled):
    """Of the first utterance it is known better who spoke."""
    speech.send({"type": "speaker_update", "utterance": 1, "speakers": speakers, "speakers_settled": settled})


def _recording(page, page_server):
    """Begin a recording whose speakers are told apart."""
    _with_speakers(page, page_server)
    page.reload()
    page.check("#live-speakers")
    speech = Speech(page)
    page.click("#live-start")
    expect(page.locator("#live-start")).to_have_text("Stop")
    return speech


def test_live_turns_have_names_that_are_refined_edited_and_kept(beeping, page_server):
    """Each turn stands alone with its name where the speaker changes, in the captions too; what the server knows better
    later and what people call each other is kept with the rows."""
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        speech = _recording(page, page_server)
        expect(page.locator("#live-speakers")).to_be_disabled()
        speech.send_line(
            "I think so no", " you", is_final=False, speakers=[_run(None, "I think so no")], speakers_settled=False
        )
        expect(page.locator("#live-lines p")).to_have_text(["I think so no you"])
        whole = "I think so no you do"
        speech.final(whole, speakers=[_run(None, whole)], speakers_settled=False)
        _refine(speech, [_run("A", whole)], settled=False)
        expect(page.locator("#live-lines .speaker")).to_have_text(["Speaker A"])
        _refine(speech, [_run("A", "I think so"), _run("B", " no you do")], settled=True)
        speech.final("Yes", speakers=[_run("B", "Yes")], speakers_settled=True)
        expect(page.locator("#live-lines .speaker")).to_have_text(["Speaker A", "Speaker B"])
        expect(page.locator("#live-lines p")).to_have_text(["I think so", " no you do", "Yes"])
        page.locator("#live-lines .speaker").nth(1).click()
        page.keyboard.type("Tom")
        page.keyboard.press("Enter")
        expect(page.locator("#live-lines .speaker")).to_have_text(["Speaker A", "Tom"])
        page.click("#live-captions")
        expect(page.locator("#captions-lines p")).to_have_text(["Speaker A: I think so", "Tom: no you do", "Yes"])
        page.keyboard.press("Escape")
        page.click("#live-start")
        expect(page.locator("#live-start")).to_have_text("Start")
        _stored_speakers(
            page, kept(page)[0]["id"], ["A", "B", "B"]
        )  # what was not written yet is, behind the last word
        (found,) = kept(page)
        assert [(row["speaker"], row["text"]) for row in found["rows"]] == [
            ("A", "I think so"),
            ("B", "no you do"),
            ("B", "Yes"),
        ]
        assert found["speakers"] == {"A": "", "B": "Tom"}
        page.click("#live-open")
        expect(page.locator("#reader-rows .speaker")).to_have_text(["Speaker A", "Tom"])


def test_a_server_that_loses_its_speakers_says_so_and_the_words_go_on(beeping, page_server):
    """What was known stays."""
    with opened(beeping, page_server.base) as watched:
        page = watched.page
        speech = _recording(page, page_server)
        speech.final("One", speakers=[_run("A", "One")], speakers_settled=True)
        speech.send({"status": "speakers_unavailable", "message": "gone"})
        expect(page.locator("#live-unlabelled")).to_be_visible()
        speech.final("Two", speakers=[_run(None, "Two")], speakers_settled=True)
        expect(page.locator("#live-lines p")).to_have_text(["One", "Two"])
        expect(page.locator("#live-lines .speaker")).to_have_text(["Speaker A"])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_where_speakers_are_shown(beeping, page_server, size, scheme, shots):
    """In the live lines, in the captions, and in the menu at a name."""
    found = {}
    with opened(beeping, page_server.base, viewport=SIZES[size], color_scheme=scheme) as watched:
        page = watched.page
        page.on("dialog", lambda dialog: dialog.accept())
        _with_speakers(page, page_server)
        page.reload()

        def check(name):
            page.evaluate("document.getElementById('live-device').selectedOptions[0].text = 'Desk microphone'")
            found[name] = looked_at(page, shots, f"speakers-{name}-{size}-{scheme}")

        page.check("#live-speakers")
        speech = Speech(page)
        page.click("#live-start")
        expect(page.locator("#live-start")).to_have_text("Stop")
        for i in range(8):
            who, text = "ABCDEFGH"[i], f"This is the turn of speaker {i + 1}, who says a little."
            speech.final(text, speakers=[_run(who, text)], speakers_settled=True)
        expect(page.locator("#live-lines .speaker")).to_have_count(8)
        check("live")
        page.click("#live-captions")
        check("captions")
        page.keyboard.press("Escape")
        page.click("#live-start")
        expect(page.locator("#live-start")).to_have_text("Start")
        page.click("#live-open")
        page.locator("#reader-rows .speaker").first.click()
        expect(page.locator(".speaker-menu")).to_be_visible()
        check("menu")
    assert found == {name: [] for name in ("live", "captions", "menu")}
