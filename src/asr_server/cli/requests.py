"""Requests from the arguments of transcribe, subtitles and translate."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from asr_server.cli import formats
from asr_server.cli.failure import UsageError, shown
from asr_server.cli.formats import Format
from asr_server.core.errors import InvalidInput
from asr_server.recordings.requests import (
    MAX_CLIPS_BYTES,
    MAX_KNOWN_SPEAKERS,
    ChannelMode,
    RecordingRequest,
    ResponseFormat,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
    VoiceDetection,
)
from asr_server.subtitle.cues import SpeakerStyle

R = TypeVar("R", bound=RecordingRequest)


def transcription_request(parsed: argparse.Namespace, wanted: Sequence[Format]) -> TranscriptionRequest:
    """Return the request of `transcribe`. Raises `UsageError`."""
    options = recording_options(parsed) | _speakers(parsed, wanted)
    options |= formats.answer_options(wanted, speakers=options["speakers"])
    return _checked(TranscriptionRequest(**options, stream=parsed.stream))


def cue_request(parsed: argparse.Namespace, wanted: Sequence[Format]) -> SubtitleRequest | TranslationRequest:
    """Return the request of `subtitles` and `translate`: a translation where there is a target language.

    Raises `UsageError`.
    """
    options = recording_options(parsed) | _speakers(parsed, wanted)
    options |= {name: getattr(parsed, name) for name in ("mode", "max_line_chars", "max_lines")}
    options["speaker_style"] = style = SpeakerStyle(parsed.speaker_style or SpeakerStyle.NAME)
    answer: ResponseFormat = formats.answer_options(wanted, speakers=options["speakers"])["response_format"]
    if not parsed.to:
        return _checked(SubtitleRequest(**options, format="vtt" if answer is ResponseFormat.VTT else "srt"))
    if style is SpeakerStyle.DASH:
        raise UsageError("--speaker-style dash is not for translations: a cue is translated as a whole.")
    options |= {"language": parsed.to, "source_language": options["language"], "bilingual": parsed.bilingual}
    return _checked(TranslationRequest(**options, response_format=answer, glossary=dict(parsed.term)))


def recording_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a request that `arguments.add_recognition` and `add_workers` state."""
    return {
        "model": model(parsed),
        "language": parsed.language or "",
        "prompt": parsed.prompt,
        "hotwords": tuple(parsed.hotword),
        "vad": VoiceDetection(parsed.vad),
        "strict": parsed.strict,
    }


def model(parsed: argparse.Namespace) -> str:
    # With --local the model is one of the settings, and the worker has no other.
    return "" if parsed.local else str(parsed.model)


def _checked(request: R) -> R:
    """Return the request if its options do not contradict each other. The error has the names of the arguments."""
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
    """Return the options about speakers. diarized_json is as good as `--speakers`."""
    is_wanted = parsed.speakers or Format.DIARIZED_JSON in wanted
    if is_wanted and Format.JSON in wanted:
        raise UsageError("json does not show speakers; say --format verbose_json or another one.")
    known = _known_speakers(parsed)
    return {
        "speakers": is_wanted,
        **{name: getattr(parsed, name) for name in ("num_speakers", "min_speakers", "max_speakers")},
        "known_speaker_names": tuple(name for name, _ in known),
        "known_speaker_references": tuple(clip for _, clip in known),
        "channel_mode": ChannelMode(parsed.channel_mode or ChannelMode.MIX),
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
