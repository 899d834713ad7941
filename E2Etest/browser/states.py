"""States of the page in which it is looked at: for axe, and for the pictures of the docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from playwright.sync_api import Page, expect

from E2Etest import recordings

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


def _give(page: Page, *contents: bytes) -> None:
    _go(page, "files")
    files = [{"name": f"talk {n}.wav", "mimeType": "audio/wav", "buffer": c} for n, c in enumerate(contents, start=1)]
    page.set_input_files("#files-input", files)


def _queue(page: Page, _: Health) -> None:
    too_large = recordings.wav(np.zeros(3_000_000, np.int16))
    _give(page, recordings.sample()[0], too_large, recordings.sample()[0])
    expect(page.locator("#files-summary")).to_have_text(re.compile("2 of 3"))


def _export(page: Page, _: Health) -> None:
    _give(page, recordings.sample()[0])
    expect(page.locator("#reader-rows")).to_contain_text("kitchen")
    page.click("#reader-export")
    expect(page.locator(".export-menu")).to_be_visible()


def _go(page: Page, name: str) -> None:
    page.goto(page.url.split("#")[0] + f"#{name}")


_WORK = {"final": 2, "partial": 1, "interactive": 3, "bulk": 12, "running": 8, "audio_held_s": 5130.0}

# Each is entered from a page that has just been opened.
STATES: dict[str, Enter] = {
    "live": _panel("live"),
    "files": _panel("files"),
    "files-queue": _queue,
    "export": _export,
    "transcripts": _panel("transcripts"),
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
