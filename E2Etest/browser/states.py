"""States of the page in which it is looked at: for axe, and for the pictures of the docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from playwright.sync_api import Page, expect

from E2Etest import recordings
from E2Etest.browser.storing import TALK, conversation, stored

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
        page.route("**/health", lambda route: route.fulfill(json=health | change))
        _go(page, "status")
        page.reload()
        expect(page.locator("#status-body")).to_be_visible()

    return enter


def _details(page: Page, health: Health) -> None:
    _status()(page, health)
    page.click("#status summary >> nth=0")
    page.click("#status-off-count")


def _busy(page: Page, health: Health) -> None:
    memory = {"kv_budget_mb": 4800, "kv_cache_mb": 1900, "sessions_mb": 640}
    _status(queue=health["queue"] | _WORK, **memory)(page, health)


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


def _speak_off(page: Page, _: Health) -> None:
    error = {"message": "This server does not speak: eSpeak NG is not installed.", "code": "speech_unavailable"}
    page.route("**/v1/audio/voices", lambda route: route.fulfill(status=501, json={"error": error}))
    _go(page, "speak")
    expect(page.locator("#speak-notice")).to_be_visible()


def _settings(page: Page, _: Health) -> None:
    _go(page, "live")
    page.click("#settings-open")
    expect(page.locator("#settings")).to_be_visible()


def _toast(page: Page, health: Health) -> None:
    _settings(page, health)
    page.fill("#key-field", "any")
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_be_visible()


def _no_transcript(page: Page, _: Health) -> None:
    _go(page, "t/none")
    expect(page.locator("#reader-notice")).to_be_visible()
    expect(page.locator("#reader-missing a")).to_be_visible()


def _give(page: Page, *contents: bytes) -> None:
    _go(page, "files")
    files = [{"name": f"talk {n}.wav", "mimeType": "audio/wav", "buffer": c} for n, c in enumerate(contents, start=1)]
    page.set_input_files("#files-input", files)


def _queue(page: Page, _: Health) -> None:
    too_large = recordings.wav(np.zeros(3_000_000, np.int16))
    _give(page, recordings.sample()[0], too_large, recordings.sample()[0])
    expect(page.locator("#files-summary")).to_have_text(re.compile("2 of 3"))


def _spoken(length_s: float) -> bytes:
    """A WAV file whose waveform looks like speech: noise that swells, with pauses between the sentences."""
    rng = np.random.default_rng(5)
    at = np.arange(int(16_000 * length_s)) / 16_000
    syllables = np.abs(np.sin(2 * np.pi * 2.1 * at)) * (0.55 + 0.45 * np.sin(0.9 * at + np.sin(0.37 * at)))
    pauses = np.ones_like(at)
    for segment in conversation():
        pauses[int(16_000 * (segment["end"] - 0.1)) : int(16_000 * (segment["end"] + 0.5))] = 0.02
    return recordings.wav((9000 * rng.normal(0, 0.35, len(at)).clip(-1, 1) * syllables * pauses).astype(np.int16))


def _talk(page: Page, **metadata: Any) -> str:
    """A transcript of a conversation with its sound."""
    segments = conversation()
    length_s = segments[-1]["end"] + 1.5
    people = {"S1": "Maria", "S2": "Tom"}
    return stored(
        page, segments, _spoken(length_s), durationS=length_s, title="House meeting", speakers=people, **metadata
    )


def _read(page: Page, transcript: str) -> None:
    _go(page, f"t/{transcript}")
    expect(page.locator("#reader-rows .line").nth(len(TALK) - 1)).to_be_attached()
    if page.locator("#reader-sound").is_visible():
        expect(page.locator(".player-time")).to_have_text(re.compile("/ 0:[1-9]"))


def _reader(page: Page, _: Health) -> None:
    _read(page, _talk(page, model="Qwen/Qwen3-ASR-1.7B"))
    page.evaluate("document.querySelector('#reader video').currentTime = 8.6")
    expect(page.locator(".line.now")).to_be_visible()


def _reader_edit(page: Page, health: Health) -> None:
    _reader(page, health)
    page.locator(".line .edit").nth(1).click()


def _reader_find(page: Page, health: Health) -> None:
    _reader(page, health)
    page.keyboard.press("/")
    page.keyboard.type("window")
    expect(page.locator("#reader-found")).to_have_text("1 of 2")


def _reader_keys(page: Page, health: Health) -> None:
    _reader(page, health)
    page.keyboard.press("?")
    expect(page.locator("#reader-keys")).to_be_visible()


_TRANSLATED = """async ([id, texts]) => {
    const { store } = await pageModule("store.js");
    const rows = await store.rows(id);
    await store.putRows(id, rows.map((row, i) => ({ ...row, translation: texts[i] })));
}"""
_GERMAN = [
    "Guten Morgen zusammen. Gehen wir vor dem Mittagessen den Plan für das neue Haus durch.",
    "Die Küche geht zum Garten, also haben wir dort Licht bis zum Abend.",
    "Was ist mit der Treppe? In der ersten Zeichnung war sie zu schmal für das Klavier.",
    "Sie ist jetzt breiter. Der Architekt hat die Wand um vierzig Zentimeter versetzt.",
    "Dann ist nur noch das Dach offen, und ob wir uns die Fenster darin leisten können.",
    "Mir sind weniger Fenster und eine gute Dämmung lieber. Das können wir nächste Woche entscheiden.",
]


def _reader_translated(page: Page, _: Health) -> None:
    made = _talk(page)
    page.evaluate(_TRANSLATED, [made, _GERMAN])
    _read(page, made)


def _reader_cut(page: Page, _: Health) -> None:
    gaps = [{"start": 12.0, "end": 14.5}]
    _read(page, _talk(page, state="cut", kind="live", gaps=gaps))
    page.check("#reader-unsure")


def _reader_coverage(page: Page, _: Health) -> None:
    ends = [segment["end"] for segment in conversation()]
    parts = [
        {"kind": "words", "start": 0, "end": ends[0]},
        {"kind": "silence", "start": ends[0], "end": ends[0] + 0.6},
        {"kind": "words", "start": ends[0] + 0.6, "end": ends[1]},
        {"kind": "unheard", "start": ends[1], "end": ends[2], "reason": "detector"},
        {"kind": "words", "start": ends[2], "end": ends[3]},
        {"kind": "unheard", "start": ends[3], "end": ends[4], "reason": "failed"},
        {"kind": "words", "start": ends[4], "end": ends[5]},
        {"kind": "sound", "start": ends[5], "end": ends[5] + 1.5},
    ]
    _read(page, _talk(page, coverage=parts))
    expect(page.locator("#reader-coverage-list button")).to_have_count(2)


def _transcripts(page: Page, _: Health) -> None:
    stored(page, conversation()[:1], title="Interview with the neighbours", durationS=2712, language="German")
    stored(
        page, conversation()[:2], title="Recording of Nov 20, 2026, 9:12 AM", durationS=341, state="cut", kind="live"
    )
    stored(page, conversation()[:3], title="Lecture 4: the history of paper", durationS=5410, state="failed")
    _talk(page)
    _go(page, "transcripts")
    expect(page.locator(".library-item")).to_have_count(4)


def _transcripts_found(page: Page, health: Health) -> None:
    _transcripts(page, health)
    page.fill("#library-query", "kitchen")
    expect(page.locator(".library-snippet").first).to_be_visible()


def _export(page: Page, _: Health) -> None:
    _give(page, recordings.sample()[0])
    expect(page.locator("#reader-rows")).to_contain_text("kitchen")
    page.click("#reader-export")
    expect(page.locator("#reader .export-menu")).to_be_visible()


def _go(page: Page, name: str) -> None:
    page.goto(page.url.split("#")[0] + f"#{name}")


_WORK = {"final": 2, "partial": 1, "interactive": 3, "bulk": 12, "running": 8, "audio_held_s": 5130.0}

# Each is entered from a page that has just been opened.
STATES: dict[str, Enter] = {
    "live": _panel("live"),
    "files": _panel("files"),
    "files-queue": _queue,
    "export": _export,
    "speak": _speak,
    "speak-reading": _speak_reading,
    "speak-failed": _speak_failed,
    "speak-off": _speak_off,
    "transcripts-empty": _panel("transcripts"),
    "transcripts": _transcripts,
    "transcripts-found": _transcripts_found,
    "reader": _reader,
    "reader-edit": _reader_edit,
    "reader-find": _reader_find,
    "reader-keys": _reader_keys,
    "reader-translated": _reader_translated,
    "reader-cut": _reader_cut,
    "reader-coverage": _reader_coverage,
    "no-transcript": _no_transcript,
    "status": _status(),
    "status-details": _details,
    "status-busy": _busy,
    "status-no-model": _status(model_loaded=False, model_state="unloaded", model_on_disk=False),
    "status-download": _status(model_loaded=False, model_state="loading", model_on_disk=False, downloaded_mb=734),
    "status-failed": _status(
        status="degraded",
        model_loaded=False,
        model_state="failed",
        model_error="MODEL_ID=Qwen/Qwen3-ASR-0.6B: the checkpoint is incomplete. Download it again.",
    ),
    "settings": _settings,
    "toast": _toast,
}
# Errors that the browser notes in them.
PROVOKED = {"speak-failed": ["500"], "speak-off": ["501"]}
