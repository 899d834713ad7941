"""The least client of `WS /ws/transcribe` that moves between servers, by the rules of docs/use/websocket.md."""

from __future__ import annotations

import json
import time

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from E2Etest.live.session import TIMEOUT_S
from E2Etest.process import Server

MOVED = 4010


class MovingClient:
    """One session, at any number of servers one after the other. Reads when it is told to, on the caller's thread.

    `messages`: all that it took, in order; `finals`: by number. `reconnect`: the last request to move, None
    once it did. `continuation`: the newest one.
    """

    def __init__(self, server: Server, **query: object) -> None:
        self.messages: list[dict] = []
        self.finals: dict[int, dict] = {}
        self.reconnect: dict | None = None
        self._query = {"handover": "true", **query}
        self._audio, self._actions = bytearray(), []  # actions: position and text
        self.continuation: dict = {}
        self._open: dict = {}  # the last partial
        self.socket = connected(server, **self._query)
        self.hello = self._first_message(self.socket)
        self._take(self.hello)

    def send(self, pcm: bytes) -> None:
        """The next audio."""
        self._audio += pcm
        self.socket.send(pcm)

    def act(self, action: str, **more: object) -> None:
        """The next action."""
        text = json.dumps({"action": action, **more})
        self._actions.append((len(self._audio), text))
        self.socket.send(text)

    def read(self, wait_s: float = 0.0) -> None:
        """Take what comes within that time."""
        give_up_s = time.monotonic() + wait_s
        while True:
            try:
                self._take(json.loads(self.socket.recv(timeout=max(0.0, give_up_s - time.monotonic()))))
            except TimeoutError:
                return

    def check_nothing_was_taken_back(self) -> None:
        """Each text of an utterance begins with what was committed of it before, on whichever server."""
        committed: dict[int, str] = {}
        for message in self.messages:
            if "text" in message:
                assert message["text"].startswith(committed.get(message["utterance"], "")), message
                committed[message["utterance"]] = message["committed"]

    def read_until(self, holds) -> None:
        """Take messages until `holds()`."""
        while not holds():
            self._take(json.loads(self.socket.recv(timeout=TIMEOUT_S)))

    def drop(self) -> None:
        """Break the connection without a close frame."""
        self.socket.socket.close()

    def move(self, server: Server) -> None:
        """Go on there. Raises what `connect` raises, and `Refused`; the present connection then stays as it is."""
        before, self.reconnect = self.socket, None
        received = max(self.finals, default=0)
        known = {"session_id": self.hello["session_id"], "received": str(received)}
        socket = connected(server, **self._query, **known)
        frame = {"action": "continue", "state": self.continuation["state"]}
        if self._open.get("utterance", 0) > received:
            names = ("utterance", "committed", "end", "speakers")
            frame |= {name: self._open[name] for name in names if name in self._open}
        socket.send(json.dumps(frame))
        hello = self._first_message(socket)  # what the connection before has meanwhile is not taken
        self.socket, self.hello = socket, hello
        before.close(MOVED)
        self._take(hello)
        at = hello["received_bytes"]
        for position, text in self._actions[hello["actions"] :]:
            self._resend(at, position)
            at = max(at, position)
            socket.send(text)
        self._resend(at, len(self._audio))

    def move_when_possible(self, server: Server) -> None:
        """Go on there as soon as it takes the session."""
        give_up_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.move(server)
                return
            except (OSError, Refused, ConnectionClosed):
                assert time.monotonic() < give_up_s
                time.sleep(0.1)

    def close(self) -> None:
        """End in order."""
        self.socket.close()

    @property
    def texts(self) -> list[tuple]:
        """Return the part of each final with words that a client keeps."""
        found = [self.finals[number] for number in sorted(self.finals)]
        return [(m["text"], m["start"], m["end"], m["ending"]) for m in found if m["text"]]

    def _resend(self, start: int, end: int) -> None:
        for at in range(start, end, 64_000):
            self.socket.send(bytes(self._audio[at : min(end, at + 64_000)]))

    def _take(self, message: dict) -> None:
        self.messages.append(message)
        if "continuation" in message:
            assert message["continuation"]["received_bytes"] >= self.continuation.get("received_bytes", 0)
            self.continuation = message["continuation"]
        if message.get("status") == "reconnect":
            self.reconnect = message
        if message.get("is_partial"):
            self._open = message
        if message.get("is_final"):
            assert message["utterance"] not in self.finals, "a final came twice"
            self.finals[message["utterance"]] = message

    @staticmethod
    def _first_message(socket: ClientConnection) -> dict:
        message = json.loads(socket.recv(timeout=TIMEOUT_S))
        if message.get("status") != "connected":
            raise Refused(message["code"])
        return message


class Refused(Exception):
    """The server answered with this error code."""


def connected(server: Server, **query: object) -> ClientConnection:
    """A connection whose first message was not read."""
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    options = {"max_size": None, "compression": None, "open_timeout": TIMEOUT_S, "additional_headers": headers}
    return connect(f"{server.live_url}?{asked}", **options)
