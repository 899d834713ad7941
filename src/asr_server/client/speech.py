"""Clients of `/v1/audio/speech`, blocking and for an event loop, and of `/v1/speakers`, the stored voices of people.

with SpeechClient("http://127.0.0.1:8100") as client, open("hello.mp3", "wb") as file:
    for data in client.stream("Hello.", voice="nova", format="mp3"):
        file.write(data)

`AsyncSpeechClient` has the same methods for `await` and `async for`; cancelling one cancels the request on the server.

with VoiceClient("http://127.0.0.1:8100") as client:
    voice = client.add("Ann", consent="By e-mail of 1 June.", recordings=["ann.wav"])
    print([voice.name for voice in client.voices()])
    client.delete(voice.id)
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

import httpx

from asr_server.client import connection
from asr_server.client.connection import Recording

_ROUTE = "/v1/audio/speech"
VOICES_ROUTE = "/v1/audio/voices"


class SpeechFields(TypedDict, total=False):
    """The options of a text. The server decides those that are not given."""

    voice: str
    language: str  # a BCP 47 tag or an English name
    format: str  # mp3, opus, aac, flac, wav or pcm, which is 16 bits, mono, 24 kHz
    speed: float  # 0.25 to 4
    instructions: str  # how to speak
    seed: int
    pause_ms: int  # between two sentences
    spell_out: bool  # numbers, dates and currency in words


@dataclass(frozen=True, slots=True)
class SpeakingVoice:
    """A voice that a text can be spoken with."""

    id: str
    description: str
    languages: tuple[str, ...]  # codes of those that it speaks
    alias_of: str = ""  # the voice that this name stands for, "" for one's own
    also_alias_of: tuple[str, ...] = ()  # those of further engines, for languages that this one does not speak


class SpeechClient(connection.Connection):
    """Blocks. All errors are `FileError`. The connection is kept for the next text."""

    def stream(self, text: str, **fields: Unpack[SpeechFields]) -> Generator[bytes, None, None]:
        """Yield the audio as it is made. All pieces joined are the file. To stop early, close the iterator."""
        with (
            connection.map_errors(),
            self._http.stream("POST", _ROUTE, **json_request({"input": text}, fields)) as answer,
        ):
            if not answer.is_success:
                answer.read()
                raise connection.error_of(answer)
            yield from answer.iter_bytes()

    def voices(self) -> list[SpeakingVoice]:
        """Return the voices that the server has. Raises `FileError` with the code `speech_unavailable` where it is
        silent."""
        with connection.map_errors():
            answer = self._http.get(VOICES_ROUTE)
        return voices_of(answer)


class AsyncSpeechClient(connection.AsyncConnection):
    """`SpeechClient` for an event loop."""

    async def stream(self, text: str, **fields: Unpack[SpeechFields]) -> AsyncGenerator[bytes, None]:
        """Yield the audio as it is made. All pieces joined are the file. To stop early, close the iterator
        (`aclosing`)."""
        with connection.map_errors():
            async with self._http.stream("POST", _ROUTE, **json_request({"input": text}, fields)) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise connection.error_of(answer)
                async for data in answer.aiter_bytes():
                    yield data

    async def voices(self) -> list[SpeakingVoice]:
        """Return the voices that the server has. Raises `FileError` with the code `speech_unavailable` where it is
        silent."""
        with connection.map_errors():
            answer = await self._http.get(VOICES_ROUTE)
        return voices_of(answer)


def json_request(text: dict[str, Any], fields: SpeechFields) -> dict[str, Any]:
    """Return the options of httpx to send a text with its fields. `text`: the fields that hold it."""
    body: dict[str, Any] = {**text, **fields}
    if "format" in fields:
        body["response_format"] = body.pop("format")
    # In ASCII, as half a character has no other encoding; the server says what is wrong with it.
    return {"content": json.dumps(body), "headers": {"Content-Type": "application/json"}}


def voices_of(answer: httpx.Response) -> list[SpeakingVoice]:
    """Return the voices of an answer to `VOICES_ROUTE`. Raises `FileError`."""
    if not answer.is_success:
        raise connection.error_of(answer)
    return [voice_of(one) for one in answer.json()["data"]]


def voice_of(listed: Mapping[str, Any]) -> SpeakingVoice:
    """Return a voice of the list that the server answers with."""
    return SpeakingVoice(
        str(listed["id"]),
        str(listed["description"]),
        tuple(listed["languages"]),
        listed["alias_of"] or "",
        tuple(listed.get("also_alias_of", ())),
    )


_SPEAKERS_ROUTE = "/v1/speakers"


@dataclass(frozen=True, slots=True)
class StoredVoice:
    """A voice on the server."""

    id: str
    name: str
    consent: str  # on what ground it is stored
    created_at: int  # Unix seconds


class VoiceClient:
    """A client that blocks. All errors are `FileError`. `key`: for a server that has keys, each of which has its own
    voices."""

    def __init__(self, server: str = "http://127.0.0.1:8100", *, key: str = "") -> None:
        self._http = httpx.Client(**connection.client_options(server, key))

    def __enter__(self) -> VoiceClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def voices(self) -> list[StoredVoice]:
        """Return the voices that are stored for the key, oldest first."""
        return [_voice(body) for body in self._send("GET", _SPEAKERS_ROUTE).json()["data"]]

    def add(self, name: str, *, consent: str, recordings: Sequence[Recording]) -> StoredVoice:
        """Store the voice of the person who speaks alone in these recordings. A voice of the same name is replaced."""
        with ExitStack() as opened:
            files = [("files[]", opened.enter_context(connection.upload(recording))) for recording in recordings]
            return _voice(
                self._send("POST", _SPEAKERS_ROUTE, data={"name": name, "consent": consent}, files=files).json()
            )

    def delete(self, identity: str) -> None:
        """Remove a voice with its name and its note."""
        self._send("DELETE", f"{_SPEAKERS_ROUTE}/{quote(identity, safe='')}")

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        with connection.map_errors():
            answer = self._http.request(method, path, **options)
        if not answer.is_success:
            raise connection.error_of(answer)
        return answer


def _voice(body: dict[str, Any]) -> StoredVoice:
    return StoredVoice(str(body["id"]), str(body["name"]), str(body["consent"]), int(body["created_at"]))
