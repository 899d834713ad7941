"""Clients of `/v1/audio/speech`, blocking and for an event loop: a text becomes audio, which arrives while it is made.

with SpeechClient("http://127.0.0.1:8100") as client, open("hello.mp3", "wb") as file:
    for data in client.stream("Hello.", voice="nova", format="mp3"):
        file.write(data)

`AsyncSpeechClient` has the same methods for `await` and `async for`; cancelling one cancels the request on the server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import httpx

from asr_server.client import connection

_ROUTE = "/v1/audio/speech"
VOICES_ROUTE = "/v1/audio/voices"


class SpeechFields(TypedDict, total=False):
    """The options of a text. The server chooses the options that are not given."""

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
    languages: tuple[str, ...]  # codes of the languages that it speaks
    alias_of: str = ""  # the voice that this name stands for, "" for a voice of the engine itself
    also_alias_of: tuple[str, ...] = ()  # aliases of further engines, for languages that this one does not speak


class SpeechClient(connection.Connection):
    """A blocking client. All errors are `FileError`. The connection is kept for the next text."""

    def stream(self, text: str, **fields: Unpack[SpeechFields]) -> Generator[bytes, None, None]:
        """Yield the audio as it is made. All pieces joined are the file. To stop early, close the iterator."""
        with self.answer("POST", _ROUTE, **json_request({"input": text}, fields)) as answer:
            yield from answer.iter_bytes()

    def voices(self) -> list[SpeakingVoice]:
        """Return the voices that the server has. Raises `FileError` with the code `speech_unavailable` if it has
        none."""
        with self.answer("GET", VOICES_ROUTE) as answer:
            answer.read()
            return voices_of(answer)


class AsyncSpeechClient(connection.AsyncConnection):
    """`SpeechClient` for an event loop."""

    async def stream(self, text: str, **fields: Unpack[SpeechFields]) -> AsyncGenerator[bytes, None]:
        """Yield the audio as it is made. All pieces joined are the file. To stop early, close the iterator
        (`aclosing`)."""
        async with self.answer("POST", _ROUTE, **json_request({"input": text}, fields)) as answer:
            async for data in answer.aiter_bytes():
                yield data

    async def voices(self) -> list[SpeakingVoice]:
        """Return the voices that the server has. Raises `FileError` with the code `speech_unavailable` if it has
        none."""
        async with self.answer("GET", VOICES_ROUTE) as answer:
            await answer.aread()
            return voices_of(answer)


def json_request(text: dict[str, Any], fields: SpeechFields) -> dict[str, Any]:
    """Return the httpx options that send a text with its fields. `text`: the fields that hold the text."""
    body: dict[str, Any] = {**text, **fields}
    if "format" in fields:
        body["response_format"] = body.pop("format")
    # In ASCII: a lone surrogate has no other encoding, and the server reports what is wrong with it.
    return {"content": json.dumps(body), "headers": {"Content-Type": "application/json"}}


def voices_of(answer: httpx.Response) -> list[SpeakingVoice]:
    """Return the voices of an answer to `VOICES_ROUTE`. Raises `FileError`."""
    if not answer.is_success:
        raise connection.error_of(answer)
    return [
        SpeakingVoice(
            str(listed["id"]),
            str(listed["description"]),
            tuple(listed["languages"]),
            listed["alias_of"] or "",
            tuple(listed.get("also_alias_of", ())),
        )
        for listed in answer.json()["data"]
    ]
