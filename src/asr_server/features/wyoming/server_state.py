"""The state of the server that the bridge uses: whether it lets the bridge in, its languages, and its voices."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import httpx

from asr_server.client.connection import FileError, client_options
from asr_server.client.speech import VOICES_ROUTE, SpeakingVoice, voices_of
from asr_server.text import languages

_TIMEOUT_S = 2.0
# A client may ask on every connection, and each question is a request to the server.
_KEPT_S = 10.0
_ALL_LANGUAGES = tuple(languages.code(name) for name in languages.model_languages())


@dataclass(frozen=True, slots=True)
class ServerState:
    """The server as the bridge found it."""

    problem: str  # why the server cannot be used, "" if it can
    # codes; all that Qwen3-ASR knows, if the server does not say which its model knows
    languages: tuple[str, ...] = _ALL_LANGUAGES
    voices: tuple[SpeakingVoice, ...] = ()  # none for a server that does not speak


class ServerMonitor:
    """Asks the server for its state when someone wants to know. Threads may share it."""

    def __init__(self, server: str, token: str) -> None:
        self._server, self._token = server, token
        self._lock = threading.Lock()
        self._state: ServerState | None = None
        self._asked_s = 0.0

    def state(self) -> ServerState:
        """Return the state of at most 10 s ago. Takes up to 4 s."""
        with self._lock:
            if self._state is None or time.monotonic() - self._asked_s > _KEPT_S:
                self._state = look(self._server, self._token)
                self._asked_s = time.monotonic()
            return self._state


def look(server: str, token: str) -> ServerState:
    """Ask the server now."""
    try:
        with httpx.Client(**{**client_options(server, token), "timeout": _TIMEOUT_S}) as client:
            answer = client.get("/health")
            body = answer.json()
            if answer.status_code == 200:
                known = tuple(map(str, body["languages"]))
                return ServerState(_problem_of(body), known, _voices(client))
        message = str(body["error"]["message"])
    except httpx.HTTPError:
        return ServerState(f"No server answers at {server}.")
    except (ValueError, KeyError, TypeError):
        return ServerState(f"What answers at {server} is no asr-server.")
    if answer.status_code == 401:
        message += " The bridge takes it from --api-key-file or ASR_API_KEY."
    return ServerState(f"The server at {server} refuses the bridge: {message}")


def _voices(client: httpx.Client) -> tuple[SpeakingVoice, ...]:
    try:
        return tuple(voices_of(client.get(VOICES_ROUTE)))
    except (FileError, httpx.HTTPError, ValueError, KeyError, TypeError):
        return ()


def _problem_of(health: dict[str, object]) -> str:
    if health["status"] == "draining":
        return "The server is shutting down."
    if health["model_state"] == "failed":
        return f"The model of the server cannot be loaded: {health['model_error']}"
    return ""
