"""Transcripts put into the store of a page, as the other panels put them there."""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from playwright.sync_api import Page

from E2Etest.browser.conftest import WAIT_MS
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
    if (typeof sound === "number") {
        const tenSeconds = new Blob([new Int16Array(160_000).fill(1)]);
        for (let at = 0; at < sound; at += 10) await store.appendSound(transcript.id, tenSeconds);
    } else if (sound) {
        const bytes = Uint8Array.from(atob(sound.content), (character) => character.charCodeAt(0));
        await store.putSound(transcript.id, new File([bytes], sound.name, { type: sound.type }));
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

_STOCK = "the lights of a kitchen were turned on and nobody said whether music should play in the other room"


def words_of(text: str, *, start_s: float = 0.0, each_s: float = 0.4, **more: Any) -> dict[str, Any]:
    """A segment as the server sends it: one word after the other, each as long."""
    times = [(start_s + i * each_s, start_s + (i + 1) * each_s) for i in range(len(text.split()))]
    words = [{"word": w.strip(".,?"), "start": a, "end": b} for w, (a, b) in zip(text.split(), times, strict=True)]
    return {"start": start_s, "end": times[-1][1], "text": text, "words": words, **more}


def conversation() -> list[dict[str, Any]]:
    """A segment for each sentence of the conversation, of two people, with translations."""
    segments: list[dict[str, Any]] = []
    for i, text in enumerate(TALK):
        start_s = segments[-1]["end"] + 0.6 if segments else 0.4
        segments.append(words_of(text, start_s=start_s, each_s=0.32, speaker=f"S{i % 2 + 1}"))
    for word in segments[2]["words"][-3:]:
        word["confidence"] = 0.4
    return segments


def long_segments(words: int) -> list[dict[str, Any]]:
    """Segments of about 28 s with this many words in all, in sentences of uneven length."""
    rng = random.Random(5)
    stock = _STOCK.split()
    segments, start_s = [], 0.0
    for _ in range(words // 70):
        text, left = [], 70
        while left:
            length = min(left, rng.randint(4, 17))
            sentence = [rng.choice(stock) for _ in range(length)]
            text.append(" ".join([sentence[0].capitalize(), *sentence[1:]]) + ".")
            left -= length
        segments.append(words_of(" ".join(text), start_s=start_s))
        start_s = segments[-1]["end"] + rng.random()
    return segments


def stored(page: Page, segments: list[dict[str, Any]], sound: bytes | float | None = None, **metadata: Any) -> str:
    """The id of a transcript with these segments and this sound, or so many seconds of silence, made in the store of
    the page."""
    content: Any = sound
    if isinstance(sound, bytes):
        content = {"content": base64.b64encode(sound).decode(), "name": "talk.wav", "type": "audio/wav"}
    return page.evaluate(_STORE, {"metadata": metadata, "segments": segments, "sound": content})


def kept(page: Page) -> list[dict[str, Any]]:
    """The transcripts, newest first, each with its `rows`, the bytes of its `sound`, and its `seconds` as WAV."""
    return page.evaluate(_KEPT)


def until_kept(page: Page, condition: Callable[[list[dict[str, Any]]], Any]) -> list[dict[str, Any]]:
    """Wait until the condition holds for the transcripts, newest first, and return them."""
    end = time.monotonic() + WAIT_MS / 1000
    while not condition(found := kept(page)):
        assert time.monotonic() < end, found
        page.wait_for_timeout(100)
    return found


def rows_of(page: Page, transcript: str) -> list[dict[str, Any]]:
    """The rows as they are stored."""
    return page.evaluate("async id => (await pageModule('store.js')).store.rows(id)", transcript)


def hum(seconds: float) -> bytes:
    """A WAV file of a tone that swells and fades."""
    at = np.arange(int(16_000 * seconds)) / 16_000
    return recordings.wav((1500 * np.sin(440 * at) * (np.sin(at) ** 2)).astype(np.int16))


def until(page: Page, condition: str, arg: Any = None) -> None:
    """Wait until this function of the page returns true. The page's policy forbids what `wait_for_function` does."""
    end = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(condition, arg):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(30)
