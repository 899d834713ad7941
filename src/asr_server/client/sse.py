"""Decodes the bytes of a server-sent event stream into JSON events."""

from __future__ import annotations

import json
from typing import Any

_DATA = b"data: "
_OPENAI_END = b"[DONE]"


class EventStream:
    """An incremental decoder. `ended` turns true with the server's last event: without it the stream was cut off."""

    def __init__(self) -> None:
        self._partial = b""
        self.ended = False

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Return the events that `chunk` completes. Comments, which only keep a connection open, are skipped."""
        *frames, self._partial = (self._partial + chunk).split(b"\n\n")
        events = []
        for frame in frames:
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
