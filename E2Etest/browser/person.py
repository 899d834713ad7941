"""Actions of a person on a page, and checks of what the page shows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, Page, expect

# Generous: the machine may be busy, and nothing here measures time.
WAIT_MS = 60_000
DESK = {"width": 1280, "height": 820}
FINALS = "#live-lines li:not(.open) p:not(.translation)"
GREY = "#live-lines li.open .grey"
# A module of the page, which has one script with all of them: `await pageModule("store.js")`.
PAGE_MODULE = "window.pageModule = name => import(document.scripts[0].src).then(page => page.need(name));"


@contextmanager
def opened(
    browser: Browser, base: str, panel: str = "live", allowed: Sequence[str] = (), script: str = "", **context: Any
) -> Iterator[Page]:
    """A page, with this `script` before its own. At its end there was no error but those with an `allowed` text, and no
    request to another host.

    It has no service worker: requests would hide behind it.
    """
    errors: list[str] = []
    hosts: set[str] = set()

    def note(url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"blob", "data"}:
            hosts.add(parts.netloc)

    with browser.new_context(**({"viewport": DESK, "service_workers": "block"} | context)) as made:
        made.set_default_timeout(WAIT_MS)
        made.add_init_script(PAGE_MODULE + script)
        page = made.new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: note(request.url))
        page.on("websocket", lambda socket: note(socket.url))
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{base}/#{panel}")
        yield page
    left = [error for error in errors if not any(text in error for text in allowed)]
    assert left == [], left
    assert hosts <= {urlsplit(base).netloc}


def shows(page: Page, selector: str, text: str | list[str] | None = None, *, like: str = "") -> None:
    """Wait until this is visible, or has this text or one that the pattern `like` fits; a list has one for each."""
    if text is not None or like:
        expect(page.locator(selector)).to_have_text(re.compile(like) if text is None else text)
    else:
        expect(page.locator(selector).first).to_be_visible()


def hides(page: Page, selector: str) -> None:
    expect(page.locator(selector)).to_be_hidden()


def button(page: Page | Locator, name: str) -> Locator:
    return page.get_by_role("button", name=name).first


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def go(page: Page, place: str) -> None:
    page.evaluate("place => { location.hash = place; }", place)


def file(name: str, content: bytes) -> dict[str, str | bytes]:
    return {"name": name, "mimeType": "audio/wav", "buffer": content}


def answer_health(page: Page, health: dict[str, Any]) -> None:
    """Reload the page, with this answer for `/health`."""
    page.route("**/health", lambda route: route.fulfill(json=health))
    page.reload()


def claim(page: Page, health: dict[str, Any], option: str, *, active: bool) -> None:
    """Make the server report that it has, or lacks, this option."""
    plan = [one for one in health["plan"] if one["name"] != option]
    answer_health(page, health | {"plan": [*plan, {"name": option, "active": active, "value": "", "reason": ""}]})


def poll(page: Page, holds: Callable[[Any], Any], find: Callable[[Page], Any]) -> Any:
    """Wait until what is found fulfils the condition, and return it."""
    end = time.monotonic() + WAIT_MS / 1000
    while not holds(found := find(page)):
        assert time.monotonic() < end, found
        page.wait_for_timeout(50)
    return found


def until(page: Page, condition: str, arg: Any = None) -> None:
    """Wait until this function of the page returns true. The page's policy forbids what `wait_for_function` does."""
    poll(page, bool, lambda page: page.evaluate(condition, arg))
