"""Requests from the arguments of transcribe, subtitles and translate."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from asr_server.cli import formats
from asr_server.cli.failure import UsageError, shown
from asr_server.cli.formats import Format
from asr_server.core.errors import InvalidInput
from asr_server.recordings.requests import (
    MAX_CLIPS_BYTES,
    MAX_KNOWN_SPEAKERS,
    RecordingRequest,
    ResponseFormat,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
)
from asr_server.subtitle.cues import SpeakerStyle

R = TypeVar("R", bound=RecordingRequest)


def transcription_request(parsed: argparse.Namespace, wanted: Sequence[Format]) -> TranscriptionRequest:
    """Return the request of `transcribe`. Raises `UsageError`."""
    options = stated(TranscriptionRequest, parsed) | _speakers(parsed, wanted)
    options |= formats.answer_options(wanted, speakers=options["speakers"])
    return _checked(TranscriptionRequest(**options))


def cue_request(parsed: argparse.Namespace, wanted: Sequence[Format]) -> SubtitleRequest | TranslationRequest:
    """Return the request of `subtitles` and `translate`: a translation if there is a target language.

    Raises `UsageError`.
    """
    options = stated(TranslationRequest if parsed.to else SubtitleRequest, parsed) | _speakers(parsed, wanted)
    answer: ResponseFormat = formats.answer_options(wanted, speakers=options["speakers"])["response_format"]
    if not parsed.to:
        return _checked(SubtitleRequest(**options | {"format": answer.value}))
    if parsed.speaker_style == SpeakerStyle.DASH:
        raise UsageError("--speaker-style dash is not for translations: a cue is translated as a whole.")
    options |= {"language": parsed.to, "source_language": parsed.language or "", "glossary": dict(parsed.term)}
    return _checked(TranslationRequest(**options | {"response_format": answer}))


def stated(kind: type[RecordingRequest], parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the request options that arguments of the same name give, plus the model and the hotwords."""
    options: dict[str, Any] = {"model": model(parsed), "hotwords": tuple(parsed.hotword)}
    for one in fields(kind):
        value = options.get(one.name, getattr(parsed, one.name, None))
        if value is not None:
            options[one.name] = type(one.default)(value) if isinstance(one.default, StrEnum) else value
    return options


def model(parsed: argparse.Namespace) -> str:
    # With --local the settings name the model, and the worker has no other.
    return "" if parsed.local else str(parsed.model)


def _checked(request: R) -> R:
    """Return the request if its options do not contradict each other. An error names the arguments, not the options."""
    try:
        request.checked()
    except InvalidInput as error:
        message = error.message.replace("speakers=true", "--speakers").replace(
            "channel_mode=split", "--channel-mode split"
        )
        message = re.sub(r"'known_speaker_\w+'", "--known-speaker", message)
        message = re.sub(r"'(\w+_\w+)'", lambda name: f"--{name[1].replace('_', '-')}", message)
        raise UsageError(message) from None
    return request


def _speakers(parsed: argparse.Namespace, wanted: Sequence[Format]) -> dict[str, Any]:
    """Return the options about speakers. The format diarized_json implies `--speakers`."""
    is_wanted = parsed.speakers or Format.DIARIZED_JSON in wanted
    if is_wanted and Format.JSON in wanted:
        raise UsageError("json does not show speakers; say --format verbose_json or another one.")
    known = _known_speakers(parsed)
    return {
        "speakers": is_wanted,
        "known_speaker_names": tuple(name for name, _ in known),
        "known_speaker_references": tuple(clip for _, clip in known),
    }


def _known_speakers(parsed: argparse.Namespace) -> list[tuple[str, bytes]]:
    if len(parsed.known_speaker) > MAX_KNOWN_SPEAKERS:
        raise UsageError(f"at most {MAX_KNOWN_SPEAKERS} speakers can be known.")
    known = []
    for name, file in parsed.known_speaker:
        try:
            with file.open("rb") as recording:
                known.append((name, recording.read(MAX_CLIPS_BYTES + 1)))
        except OSError as error:
            raise UsageError(f"--known-speaker {shown(str(file))} cannot be read: {error.strerror}.") from None
    if sum(len(clip) for _, clip in known) > MAX_CLIPS_BYTES:
        raise UsageError(f"the recordings of --known-speaker have more than {MAX_CLIPS_BYTES:_} bytes together.")
    return known
