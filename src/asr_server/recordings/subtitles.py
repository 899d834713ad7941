"""Segments with words to cues, laid out as the settings and the caller say."""

from __future__ import annotations

from collections.abc import Iterable

from asr_server.core.audio import s_to_ms
from asr_server.core.settings import Settings
from asr_server.core.transcript import Segment, TimeSource, Transcript
from asr_server.recordings.requests import OutputOptions
from asr_server.subtitle import cue_segmentation
from asr_server.subtitle.cue_config import CueConfig
from asr_server.subtitle.cues import Cue
from asr_server.subtitle.units import Passage

_MIXED = "mixed"


def cue_config(settings: Settings, output: OutputOptions) -> CueConfig:
    """The server's limits for cues with the caller's layout. Raises `ValueError` for impossible lines."""
    return CueConfig(
        max_duration_ms=s_to_ms(settings.subtitle_max_duration),
        min_duration_ms=s_to_ms(settings.subtitle_min_duration),
        min_gap_ms=s_to_ms(settings.subtitle_min_gap),
        pause_ms=s_to_ms(settings.subtitle_pause_threshold),
        max_line_columns=output.max_line_chars,
        max_lines=output.max_lines,
        speaker_style=output.speaker_style,
    )


def cues(transcript: Transcript, config: CueConfig) -> list[Cue]:
    """The words of all segments, in order, as cues. A segment without words has no cue."""
    passages = [Passage(segment.text, segment.words, segment.speaker or "") for segment in transcript.segments]
    return cue_segmentation.cues(passages, config, transcript.duration_ms)


def time_source(segments: Iterable[Segment]) -> str:
    """Where the times of the words come from: "aligned", "estimated", or "mixed"; "estimated" for no words."""
    sources = {word.source for segment in segments for word in segment.words}
    return _MIXED if len(sources) > 1 else next(iter(sources), TimeSource.ESTIMATED).value
