"""Transcripts in the store of a page: put there as the other panels put them, and read again."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
from playwright.sync_api import Page, expect

from E2Etest.browser.person import poll
from E2Etest.drive import recordings

_STORE = """async ({ metadata, segments, sound }) => {
    const { store } = await pageModule("store.js");
    const { rowsOf } = await pageModule("transcript.js");
    await store.open();
    // The rows stay as they are: they count as paragraphs.
    const defaults = { title: "A talk", state: "complete", language: "English", paragraphs: true };
    const transcript = await store.create({ ...defaults, ...metadata });
    let after = 0;
    for (const segment of segments) {
        const rows = rowsOf(segment, after);
        after = rows.at(-1)?.n ?? after;
        await store.putRows(transcript.id, rows);
    }
    if (sound) {
        const bytes = Uint8Array.from(atob(sound), (character) => character.charCodeAt(0));
        await store.putSound(transcript.id, new File([bytes], "talk.wav", { type: "audio/wav" }));
    }
    return transcript.id;
}"""
_KEPT = """async () => {
    const { store } = await pageModule("store.js");
    await store.open();
    return Promise.all((await store.list()).map(async one => {
        const sound = await store.sound(one.id);
        const bytes = sound?.size ?? 0;
        return { ...one, rows: await store.rows(one.id), sound: bytes, seconds: bytes && (bytes - 44) / 32000 };
    }));
}"""
# Sentences of a conversation.
TALK = [
    "Good morning, everyone. Let us go through the plan for the new house before lunch.",
    "The kitchen faces the garden, so we have light there until the evening.",
    "What about the stairs? In the first drawing they were too narrow for the piano.",
    "They are wider now. The architect has moved the wall by forty centimetres.",
    "Then the only open question is the roof, and whether we can afford the windows in it.",
    "I would rather have fewer windows and a good insulation. We can decide that next week.",
]


def words_of(text: str, *, start_s: float = 0.0, each_s: float = 0.4, **more: Any) -> dict[str, Any]:
    """A segment as the server sends it: one word after the other, each as long."""
    times = [(start_s + i * each_s, start_s + (i + 1) * each_s) for i in range(len(text.split()))]
    words = [{"word": w.strip(".,?"), "start": a, "end": b} for w, (a, b) in zip(text.split(), times, strict=True)]
    return {"start": start_s, "end": times[-1][1], "text": text, "words": words, **more}


def long_segments(words: int) -> list[dict[str, Any]]:
    """Segments with this many words in all, each of the whole conversation."""
    text = " ".join(TALK)
    length_s = 0.1 * len(text.split())
    return [words_of(text, start_s=i * length_s, each_s=0.1) for i in range(words // len(text.split()))]


def hum(seconds: float) -> bytes:
    """A WAV file of a tone that swells and fades."""
    at = np.arange(int(16_000 * seconds)) / 16_000
    return recordings.wav((1500 * np.sin(440 * at) * (np.sin(at) ** 2)).astype(np.int16))


def stored(page: Page, segments: list[dict[str, Any]], sound_s: float = 0, **metadata: Any) -> str:
    """The id of a transcript with these segments and so many seconds of sound, made in the store of the page."""
    sound = base64.b64encode(hum(sound_s)).decode() if sound_s else None
    metadata = {"durationS": sound_s, **metadata}
    return page.evaluate(_STORE, {"metadata": metadata, "segments": segments, "sound": sound})


def kept(page: Page) -> list[dict[str, Any]]:
    """The transcripts, newest first, each with its `rows`, the bytes of its `sound`, and its `seconds` as WAV."""
    return page.evaluate(_KEPT)


def texts(transcript: dict[str, Any]) -> list[str]:
    return [row["text"] for row in transcript["rows"]]


def until_kept(page: Page, condition: Callable[[list[dict[str, Any]]], Any]) -> list[dict[str, Any]]:
    """Wait until the condition holds for the transcripts, newest first, and return them."""
    return poll(page, condition, kept)


def shows_rows(page: Page, *said: str) -> None:
    """Wait until the reader shows these rows, and the newest transcript has them."""
    expect(page.locator("#reader-rows .line-text")).to_have_text(list(said))
    until_kept(page, lambda found: texts(found[0]) == list(said))
