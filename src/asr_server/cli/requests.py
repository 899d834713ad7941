"""Requests from the arguments of transcribe, subtitles and translate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from asr_server.cli import formats
from asr_server.cli.failure import UsageError, shown
from asr_server.cli.formats import Format
from asr_server.client.forms import MODES
from asr_server.recordings.requests import (
    DEFAULT_MODEL,
    MAX_CLIPS_BYTES,
    MAX_KNOWN_SPEAKERS,
    ChannelMode,
    KnownSpeaker,
    OutputOptions,
    SpeakerOptions,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
    VoiceDetection,
)
from asr_server.subtitle.cues import SpeakerStyle


def transcription_request(parsed: argparse.Namespace, wanted: Sequence[Format]) -> TranscriptionRequest:
    """Return the request of `transcribe`. Raises `UsageError`."""
    fields = recording_fields(parsed) | _speakers(parsed, wanted)
    output = formats.answer_options(wanted, OutputOptions(), speakers="speakers" in fields)
    return TranscriptionRequest(**fields, output=output, stream=parsed.stream)


def cue_request(parsed: argparse.Namespace, wanted: Sequence[Format]) -> SubtitleRequest | TranslationRequest:
    """Return the request of `subtitles` and `translate`: a translation where there is a target language.

    Raises `UsageError`.
    """
    fields = recording_fields(parsed) | _speakers(parsed, wanted) | {"word_times": MODES[parsed.mode]}
    if parsed.speaker_style and "speakers" not in fields:
        raise UsageError("--speaker-style needs --speakers.")
    style = SpeakerStyle(parsed.speaker_style or SpeakerStyle.NAME)
    if parsed.to and style is SpeakerStyle.DASH:
        raise UsageError("--speaker-style dash is not for translations: a cue is translated as a whole.")
    layout = OutputOptions(max_line_chars=parsed.max_line_chars, max_lines=parsed.max_lines, speaker_style=style)
    fields["output"] = formats.answer_options(wanted, layout, speakers="speakers" in fields)
    if not parsed.to:
        return SubtitleRequest(**fields)
    return TranslationRequest(
        **fields, target_language=parsed.to, bilingual=parsed.bilingual, glossary=dict(parsed.term)
    )


def recording_fields(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a request that `arguments.add_recognition` and `add_workers` state."""
    return {
        "model": model(parsed),
        "language": parsed.language,
        "prompt": parsed.prompt,
        "hotwords": tuple(parsed.hotword),
        "vad": VoiceDetection(parsed.vad),
        "strict": parsed.strict,
    }


def model(parsed: argparse.Namespace) -> str:
    # With --local the model is one of the settings, and the worker has no other.
    return DEFAULT_MODEL if parsed.local or not parsed.model else str(parsed.model)


def _speakers(parsed: argparse.Namespace, wanted: Sequence[Format]) -> dict[str, Any]:
    """Return `speakers` and `channel_mode`, where speakers are wanted. diarized_json is as good as `--speakers`."""
    counts = ("num_speakers", "min_speakers", "max_speakers")
    given = [
        f"--{name.replace('_', '-')}" for name in (*counts, "known_speaker", "channel_mode") if getattr(parsed, name)
    ]
    if not (parsed.speakers or Format.DIARIZED_JSON in wanted):
        if given:
            raise UsageError(f"{given[0]} needs --speakers.")
        return {}
    if Format.JSON in wanted:
        raise UsageError("json does not show speakers; say --format verbose_json or another one.")
    mode = ChannelMode(parsed.channel_mode or ChannelMode.MIX)
    if mode is ChannelMode.SPLIT and any(getattr(parsed, name) for name in counts):
        raise UsageError(f"{given[0]} contradicts --channel-mode split: its channels are the speakers.")
    at_least, at_most = parsed.num_speakers or parsed.min_speakers or 1, parsed.num_speakers or parsed.max_speakers
    if parsed.num_speakers and (parsed.min_speakers or parsed.max_speakers):
        raise UsageError("--num-speakers is exact; leave out --min-speakers and --max-speakers.")
    if at_most and at_least > at_most:
        raise UsageError("--min-speakers is more than --max-speakers.")
    return {"speakers": SpeakerOptions(at_least, at_most, _known_speakers(parsed)), "channel_mode": mode}


def _known_speakers(parsed: argparse.Namespace) -> tuple[KnownSpeaker, ...]:
    if len(parsed.known_speaker) > MAX_KNOWN_SPEAKERS:
        raise UsageError(f"at most {MAX_KNOWN_SPEAKERS} speakers can be known.")
    known = []
    for name, file in parsed.known_speaker:
        try:
            with file.open("rb") as recording:
                known.append(KnownSpeaker(name, recording.read(MAX_CLIPS_BYTES + 1)))
        except OSError as error:
            raise UsageError(f"--known-speaker {shown(str(file))} cannot be read: {error.strerror}.") from None
    if sum(len(speaker.clip) for speaker in known) > MAX_CLIPS_BYTES:
        raise UsageError(f"the recordings of --known-speaker have more than {MAX_CLIPS_BYTES:_} bytes together.")
    return tuple(known)
