"""Bytes of a server-sent event stream to its JSON events, however the bytes are cut. Not a connection."""

from __future__ import annotations

import json
from typing import Any

_DATA = b"data: "
_OPENAI_END = b"[DONE]"


class EventStream:
    """Feed it what arrives. `ended` turns true with the server's last event: without it the stream was cut."""

    def __init__(self) -> None:
        self._open = b""
        self.ended = False

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """The events that `chunk` completes; comments, which keep a connection open, are none."""
        *whole, self._open = (self._open + chunk).split(b"\n\n")
        events = []
        for frame in whole:
            if not frame.startswith(_DATA):
                continue
            body = frame.removeprefix(_DATA)
            if body == _OPENAI_END:
                self.ended = True
                continue
            event = json.loads(body)
            if event.get("done"):
                self.ended = True
            else:
                events.append(event)
        return events
