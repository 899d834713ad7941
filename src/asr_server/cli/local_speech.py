"""The speech of `--local`: what a server speaks with, built in this process for one text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asr_server import feature_list
from asr_server.app import Machinery, machinery
from asr_server.cli.backends import local_settings
from asr_server.cli.failure import Failure, UsageError
from asr_server.client.speech import SpeakingVoice, voice_of
from asr_server.core import logger
from asr_server.core.errors import AsrError, ModelUnavailable, SpeechUnavailable
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.requests import AudioChunk, SpeechEvent, SpeechRequest
from asr_server.features.speech_output.voice_list import voice_list

if TYPE_CHECKING:
    from asr_server.client.speech import SpeechFields


def speak(text: str, fields: SpeechFields, write: Callable[[bytes], int]) -> tuple[str, ...]:
    """Write the audio as it is made. Returns the fields that the engine has no use for.

    Raises `UsageError` for settings with which nothing speaks, `PlanError`, `SettingsError` and `Failure`.
    """
    given: dict[str, Any] = {**fields}
    audio_format = SpeechFormat(given.pop("format"))
    with _failures():
        return asyncio.run(_speak(SpeechRequest(text=text, format=audio_format, **given), write))


def voices() -> list[SpeakingVoice]:
    """Return the voices of the engine, and OpenAI's names for them. Raises as `speak`."""
    with _failures():
        return asyncio.run(_voices())


async def _speak(request: SpeechRequest, write: Callable[[bytes], int]) -> tuple[str, ...]:
    async def emit(event: SpeechEvent) -> None:
        if isinstance(event, AudioChunk):
            write(event.data)

    built = _build()
    try:
        prepared = built.speech.processor.prepare(request)
        await built.speech.processor.speak(prepared, emit)
    finally:
        await built.close()
    return prepared.ignored


async def _voices() -> list[SpeakingVoice]:
    built = _build()
    try:
        listed = voice_list([client.traits for client in built.speech.processor.engines.named])
    finally:
        await built.close()
    return [voice_of(voice.model_dump()) for voice in listed.data]


def _build() -> Machinery:
    settings = local_settings(None)
    logger.configure(settings.log_level, as_json=False)
    return machinery(settings, feature_list.resolve(settings))


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (SpeechUnavailable, ModelUnavailable) as error:
        raise UsageError(error.message) from error
    except AsrError as error:
        raise Failure(error.code, error.message) from error
