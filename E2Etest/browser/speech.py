"""The server's end of the live socket, played by a test."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Page, WebSocketRoute

from E2Etest.browser.person import shows

HELLO = {"status": "connected", "session_id": "live_1", "window_max_s": 30}


class Speech:
    """The server's end of the page's socket, after Start. Each line is said in a second."""

    def __init__(self, page: Page) -> None:
        self.count = 0
        self._route: WebSocketRoute | None = None
        page.route_web_socket(re.compile("/ws/transcribe"), self._opened)
        page.click("#live-start")
        shows(page, "#live-start", "Stop")

    def _opened(self, route: WebSocketRoute) -> None:
        self._route = route
        route.on_message(self._received)
        self.send(HELLO)

    def _received(self, message: str | bytes) -> None:
        if isinstance(message, str) and json.loads(message)["action"] == "flush":
            self.final("", ending="flush")

    def send(self, message: dict[str, Any]) -> None:
        """Any message."""
        assert self._route is not None
        self._route.send(json.dumps(message))

    def partial(self, committed: str, tentative: str = "", **more: Any) -> None:
        """The open line."""
        times = {"utterance": self.count + 1, "start": self.count, "end": self.count + 1, "lag_ms": 40}
        text = {"text": committed + tentative, "committed": committed, "tentative": tentative}
        language = {"language": "English", "language_code": "en"}
        self.send({"is_final": False, **text, **times, **language, **more})

    def final(self, text: str, **more: Any) -> None:
        """The end of the open line."""
        self.partial(text, is_final=True, **{"ending": "pause", **more})
        self.count += 1
