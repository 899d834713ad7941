"""Sends messages to standard output, to a webhook or to the peer. Each receiver has a bounded queue and a thread."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, TextIO

import httpx
from loguru import logger

Message = dict[str, Any]

# The most messages that wait, in total and for one call. Text that may still change is dropped beyond half of that.
_QUEUED, MOST_OF_CALL = 5_000, 100
_POST_TIMEOUT_S = 5.0  # to connect, and for each wait for the answer
_PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # before the next tries of a message
_WORTH_REPEATING = {408, 425, 429}  # of 4xx; all other failures are repeated
_CLOSE_WITHIN_S = 10.0


class GivenUp(Exception):
    """A message cannot be delivered. `code` is stable."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class MessageQueue:
    """Delivers messages in their order, on its own thread, so that a slow receiver holds up no call.

    `deliver` raises `GivenUp`. A message that is given up is counted and logged, unless its text was not final.
    """

    def __init__(self, name: str, deliver: Callable[[Message], None]) -> None:
        self._name, self._deliver = name, deliver
        self._changed = threading.Condition()
        self._queue: deque[Message] = deque()
        self._of_call: Counter[str] = Counter()
        self._busy = self._closed = False
        self._given_up = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Add a message. Never blocks."""
        with self._changed:
            share, call = 1 if is_final(message) else 2, message["call"]
            has_room = len(self._queue) < _QUEUED // share and self._of_call[call] < MOST_OF_CALL // share
            if has_room and not self._closed:
                self._queue.append(message)
                self._of_call[call] += 1
                self._changed.notify_all()
                return
        self._give_up(message, "closed" if self._closed else "queue_full")

    def close(self, within_s: float = _CLOSE_WITHIN_S) -> None:
        """Deliver waiting messages for at most `within_s` seconds, and give up the rest."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._busy, within_s)
            self._closed = True
            rest = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for message in rest:
            self._give_up(message, "closed")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                message = self._queue.popleft()
                self._of_call[message["call"]] -= 1
                if not self._of_call[message["call"]]:
                    del self._of_call[message["call"]]
                self._busy = True
            try:
                self._deliver(message)
            except GivenUp as failure:
                self._give_up(message, failure.code)

    def _give_up(self, message: Message, code: str) -> None:
        if not is_final(message):
            return
        with self._changed:
            self._given_up += 1
            count = self._given_up
        logger.error("message given up", code=code, output=self._name, call=message["call"], given_up=count)


def is_final(message: Message) -> bool:
    """Return False for text that may still change: it may be dropped, since a later message replaces it."""
    return bool(message.get("final", True))


class LineWriter:
    """Writes each message as a line of JSON. `on_broken` is called once nobody reads any more."""

    def __init__(self, out: TextIO, on_broken: Callable[[], None]) -> None:
        self._out, self._on_broken = out, on_broken

    def __call__(self, message: Message) -> None:
        """Write a message. Raises `GivenUp`."""
        try:
            self._out.write(encoded(message) + "\n")
            self._out.flush()
        except OSError:
            self._on_broken()
            raise GivenUp("output_closed") from None


class Webhook:
    """Posts each message as JSON, and repeats it if the receiver is away or busy."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.Client(timeout=_POST_TIMEOUT_S)

    def __call__(self, message: Message) -> None:
        """Post a message. Raises `GivenUp`."""
        code = self._post(message)
        for pause_s in _PAUSES_S if is_final(message) else ():
            if code is None or (code.startswith("http_4") and int(code[5:]) not in _WORTH_REPEATING):
                break
            time.sleep(pause_s)
            code = self._post(message)
        if code is not None:
            raise GivenUp(code)

    def _post(self, message: Message) -> str | None:
        """Post once. Return the code of the failure, None for success. The body of the answer is not read."""
        content, headers = encoded(message).encode(), {"Content-Type": "application/json"}
        try:
            with self._client.stream("POST", self._url, content=content, headers=headers) as answer:
                return None if answer.is_success else f"http_{answer.status_code}"
        except httpx.HTTPError:
            return "webhook_unreachable"


def encoded(message: Message) -> str:
    # A peer may send half a surrogate pair, which UTF-8 has no bytes for.
    return json.dumps(message, ensure_ascii=False).encode(errors="replace").decode()
