"""States of the page in which it is looked at: for axe, and for the pictures of the docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from playwright.sync_api import Page, expect

from E2Etest.browser.speech import Speech
from E2Etest.browser.storing import TALK, conversation, hum, stored
from E2Etest.drive import recordings

Health = dict[str, Any]
Enter = Callable[[Page, Health], None]

SIZES = {
    "phone": {"width": 390, "height": 844},
    "tablet": {"width": 820, "height": 1100},
    "desk": {"width": 1440, "height": 900},
}
SCHEMES = ("light", "dark")


def _panel(name: str) -> Enter:
    def enter(page: Page, _: Health) -> None:
        _go(page, name)

    return enter


def _status(**change: Any) -> Enter:
    """Status with a `/health` that differs in this."""

    def enter(page: Page, health: Health) -> None:
        _go(page, "status")
        answer_health(page, health | change)
        expect(page.locator("#status-body")).to_be_visible()

    return enter


def answer_health(page: Page, health: Health) -> None:
    """Reload the page, with this answer for `/health`."""
    page.route("**/health", lambda route: route.fulfill(json=health))
    page.reload()


def claim(page: Page, health: Health, option: str, *, active: bool = True) -> None:
    """Make the server report that it has, or lacks, this option."""
    plan = [one for one in health["plan"] if one["name"] != option]
    plan.append({"name": option, "active": active, "value": "embedded", "reason": ""})
    answer_health(page, health | {"plan": plan})


def _recording(page: Page) -> Speech:
    page.on("dialog", lambda dialog: dialog.accept())
    speech = Speech(page)
    page.click("#live-start")
    expect(page.locator("#live-start")).to_have_text("Stop")
    # The browser's own microphone is called a fake.
    page.evaluate("document.getElementById('live-device').selectedOptions[0].text = 'Desk microphone'")
    return speech


def _live_lines(page: Page, _: Health) -> None:
    speech = _recording(page)
    for line in TALK[:-1]:
        speech.final(line)
    expect(page.locator("#live-time")).to_have_text(re.compile("0:(0[2-9]|[1-5])"))
    speech.partial("And the lamp at the door ", "should stay on")
    expect(page.locator("#live-lines li.open")).to_have_count(1)


def _live_speakers(page: Page, health: Health) -> None:
    claim(page, health, "speakers")
    page.check("#live-speakers")
    speech = _recording(page)
    for i, who in enumerate("ABCDEFGH"):
        text = f"This is the turn of speaker {i + 1}, who says a little."
        speech.final(text, speakers=[{"speaker": who, "text": text}], speakers_settled=True)
    expect(page.locator("#live-lines .speaker")).to_have_count(8)


def _then(enter: Enter, *steps: str | tuple[str, str], shown: str = "") -> Enter:
    """Return a state that is reached from another one: what is clicked, keys, and fields with what is typed there."""

    def further(page: Page, health: Health) -> None:
        enter(page, health)
        for step in steps:
            match step:
                case (field, text):
                    page.fill(field, text)
                case str() if step[0] in "#.":
                    page.locator(step).first.click()
                case _:
                    page.keyboard.press(step)
        if shown:
            expect(page.locator(shown).first).to_be_visible()

    return further


def _live_interrupted(page: Page, health: Health) -> None:
    _live_lines(page, health)
    page.reload()
    expect(page.locator("#live-interrupted")).to_be_visible()


def _speak(page: Page, _: Health) -> None:
    _go(page, "speak")
    page.fill("#speak-text", "\n\n".join(TALK))
    expect(page.locator("#speak-read")).to_be_enabled()


def _speak_reading(page: Page, health: Health) -> None:
    """Paused in the third sentence, so that the pictures are the same."""
    _speak(page, health)
    page.click("#speak-read")
    page.locator(".spoken").nth(2).click()
    expect(page.locator(".spoken.now")).to_have_text(TALK[1])
    page.click("#speak-read")
    expect(page.locator("#speak-state")).to_have_text("Paused")


def _speak_failed(page: Page, health: Health) -> None:
    error = {"message": "", "type": "server_error", "param": None, "code": "speech_failed"}
    page.route("**/speech/stream", lambda route: route.fulfill(status=500, json={"error": error}))
    _speak(page, health)
    page.click("#speak-read")
    expect(page.locator("#speak-again")).to_be_visible()


def _give(page: Page, *contents: bytes) -> None:
    _go(page, "files")
    files = [{"name": f"talk {n}.wav", "mimeType": "audio/wav", "buffer": c} for n, c in enumerate(contents, start=1)]
    page.set_input_files("#files-input", files)


def _queue(page: Page, _: Health) -> None:
    too_large = recordings.wav(np.zeros(3_000_000, np.int16))
    _give(page, recordings.sample()[0], too_large, recordings.sample()[0])
    expect(page.locator("#files-summary")).to_have_text(re.compile("2 of 3"))


def _talk(page: Page, **metadata: Any) -> str:
    """A transcript of a conversation with its sound."""
    segments = conversation()
    length_s = segments[-1]["end"] + 1.5
    people = {"S1": "Maria", "S2": "Tom"}
    return stored(page, segments, hum(length_s), durationS=length_s, title="House meeting", speakers=people, **metadata)


def _read(page: Page, transcript: str) -> None:
    _go(page, f"t/{transcript}")
    expect(page.locator("#reader-rows .line").nth(len(TALK) - 1)).to_be_attached()
    if page.locator("#reader-sound").is_visible():
        expect(page.locator(".player-time")).to_have_text(re.compile("/ 0:[1-9]"))


def _reader(page: Page, _: Health) -> None:
    _read(page, _talk(page, model="Qwen/Qwen3-ASR-1.7B"))
    page.evaluate("document.querySelector('#reader video').currentTime = 8.6")
    expect(page.locator(".line.now")).to_be_visible()


def _reader_cut(page: Page, _: Health) -> None:
    """Show a live session that was interrupted, with all that is known about its words."""
    kinds = (
        ("words", ""),
        ("silence", ""),
        ("unheard", "detector"),
        ("words", ""),
        ("unheard", "failed"),
        ("sound", ""),
    )
    parts = [
        {"kind": kind, "start": segment["start"], "end": segment["end"], "reason": reason}
        for segment, (kind, reason) in zip(conversation(), kinds, strict=True)
    ]
    _read(page, _talk(page, state="cut", kind="live", gaps=[{"start": 12.0, "end": 14.5}], coverage=parts))
    expect(page.locator("#reader-coverage-list button")).to_have_count(2)
    page.check("#reader-unsure")


def _transcripts(page: Page, _: Health) -> None:
    stored(page, conversation()[:1], title="Interview with the neighbours", durationS=2712, language="German")
    stored(
        page, conversation()[:2], title="Recording of Nov 20, 2026, 9:12 AM", durationS=341, state="cut", kind="live"
    )
    stored(page, conversation()[:3], title="Lecture 4: the history of paper", durationS=5410, state="failed")
    _talk(page)
    _go(page, "transcripts")
    expect(page.locator(".library-item")).to_have_count(4)


def _go(page: Page, name: str) -> None:
    page.goto(page.url.split("#")[0] + f"#{name}")


# Each is entered from a page that has just been opened.
STATES: dict[str, Enter] = {
    "live": _panel("live"),
    "live-lines": _live_lines,
    "live-captions": _then(_live_lines, "#live-captions", shown="#captions"),
    "live-end": _then(_live_lines, "#live-start", shown="#live-open"),
    "live-interrupted": _live_interrupted,
    "speakers-live": _live_speakers,
    "speakers-menu": _then(_live_speakers, "#live-start", "#live-open", "#reader-rows .speaker", shown=".speaker-menu"),
    "files": _panel("files"),
    "files-queue": _queue,
    "export": _then(_reader, "#reader-export", shown="#reader .export-menu"),
    "speak": _speak,
    "speak-reading": _speak_reading,
    "speak-failed": _speak_failed,
    "transcripts-empty": _panel("transcripts"),
    "transcripts": _transcripts,
    "transcripts-found": _then(_transcripts, ("#library-query", "kitchen"), shown=".library-snippet"),
    "reader": _reader,
    "reader-edit": _then(_reader, ".line .edit >> nth=1"),
    "reader-find": _then(_reader, "/", ("*:focus", "window"), shown="#reader-found:text('1 of 2')"),
    "reader-keys": _then(_reader, "?", shown="#reader-keys"),
    "reader-cut": _reader_cut,
    "no-transcript": _then(_panel("t/none"), shown="#reader-missing a"),
    "status": _status(),
    "status-details": _then(_status(), "#status summary", "#status-off-count"),
    "status-failed": _status(
        status="degraded",
        model_loaded=False,
        model_state="failed",
        model_error="MODEL_ID=Qwen/Qwen3-ASR-0.6B: the checkpoint is incomplete. Download it again.",
    ),
    "settings": _then(_panel("live"), "#settings-open", shown="#settings"),
    "toast": _then(_panel("live"), "#settings-open", ("#key-field", "any"), "Enter", shown=".toast"),
}
# Errors that the browser notes in them.
PROVOKED = {"speak-failed": ["500"]}
