"""A client of `/v1/speakers`: store the voice of a person, list those that are stored, delete one.

with VoiceClient("http://127.0.0.1:8100") as client:
    voice = client.add("Ann", consent="By e-mail of 1 June.", recordings=["ann.wav"])
    print([voice.name for voice in client.voices()])
    client.delete(voice.id)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from asr_server.client import connection
from asr_server.client.connection import Connection, Recording

_ROUTE = "/v1/speakers"


@dataclass(frozen=True, slots=True)
class StoredVoice:
    """A voice on the server."""

    id: str
    name: str
    consent: str  # on what ground it is stored
    created_at: int  # Unix seconds


class VoiceClient(Connection):
    """A client that blocks. All errors are `FileError`. Each key of a server has its own voices."""

    def voices(self) -> list[StoredVoice]:
        """Return the voices that are stored for the key, oldest first."""
        return [_voice(body) for body in self._send("GET", _ROUTE).json()["data"]]

    def add(self, name: str, *, consent: str, recordings: Sequence[Recording]) -> StoredVoice:
        """Store the voice of the person who speaks alone in these recordings. A voice of the same name is replaced."""
        with ExitStack() as opened:
            files = [("files[]", opened.enter_context(connection.upload(recording))) for recording in recordings]
            return _voice(self._send("POST", _ROUTE, data={"name": name, "consent": consent}, files=files).json())

    def delete(self, identity: str) -> None:
        """Remove a voice with its name and its note."""
        self._send("DELETE", f"{_ROUTE}/{quote(identity, safe='')}")

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        with connection.map_errors():
            answer = self._http.request(method, path, **options)
        if not answer.is_success:
            raise connection.error_of(answer)
        return answer


def _voice(body: dict[str, Any]) -> StoredVoice:
    return StoredVoice(str(body["id"]), str(body["name"]), str(body["consent"]), int(body["created_at"]))
