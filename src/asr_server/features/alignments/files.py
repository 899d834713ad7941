"""Renders an aligned text: as JSON, as subtitles, as a table of words, and as a TextGrid of Praat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from asr_server.core.transcript import Word
from asr_server.features.alignments.alignments import AlignedText
from asr_server.features.alignments.requests import AlignedWord, AlignmentFormat
from asr_server.recordings.render import JSON, TEXT, dump, render_cues, usage
from asr_server.recordings.requests import ResponseFormat, Result
from asr_server.subtitle import cue_segmentation
from asr_server.subtitle.cue_segmentation import Passage
from asr_server.subtitle.cues import CueConfig, SpeakerStyle
from asr_server.text import languages, scripts


def render(aligned: AlignedText, answer: AlignmentFormat, config: CueConfig) -> Result:
    """Render the text in a format. `config` is for cues."""
    sources = {word.time.source.value for word in aligned.words if word.time}
    source = "mixed" if len(sources) > 1 else next(iter(sources), None)
    if answer is AlignmentFormat.JSON:
        return Result(dump(_listed(aligned)), JSON, time_source=source)
    if answer is AlignmentFormat.TSV:
        content = _table(aligned).encode()
    elif answer is AlignmentFormat.TEXTGRID:
        content = _text_grid(aligned).encode()
    else:
        content = _subtitles(aligned, ResponseFormat(answer.value), config)
    return Result(content, TEXT, file_name=f"alignment.{answer.value}", time_source=source)


def _listed(aligned: AlignedText) -> dict[str, Any]:
    transcript = aligned.transcript
    return {
        "task": "align",
        "language": transcript.language.lower() or "auto",
        "language_code": languages.code(transcript.language),
        "duration": transcript.duration_ms / 1000,
        "score": _score(aligned.words),
        "segments": [{"text": line.text, **_times(line.words), "score": _score(line.words)} for line in aligned.lines],
        "words": [
            {"word": word.text, **_times([word]), "score": _score([word])}
            | {"source": word.time.source.value if word.time else None}
            for word in aligned.words
        ],
        "usage": usage(transcript),
    }


def _score(words: Sequence[AlignedWord]) -> float:
    return round(sum(word.score for word in words) / max(1, len(words)), 4)


def _times(words: Sequence[AlignedWord]) -> dict[str, float | None]:
    """Return where the words begin and end, in seconds; None where none was heard."""
    found = [word.time for word in words if word.time]
    return {
        "start": found[0].start_ms / 1000 if found else None,
        "end": found[-1].end_ms / 1000 if found else None,
    }


def _subtitles(aligned: AlignedText, wanted: ResponseFormat, config: CueConfig) -> bytes:
    """Return a file of the words that have times. No cue has words of two lines: each line is a speaker without a
    name."""
    passages = [
        Passage(scripts.join(word.text for word in words), words, speaker=str(number))
        for number, line in enumerate(aligned.lines, start=1)
        if (words := [_timed(word) for word in line.words if word.time])
    ]
    config = replace(config, speaker_style=SpeakerStyle.NONE)
    return render_cues(cue_segmentation.cues(passages, config, aligned.transcript.duration_ms), wanted)


def _timed(word: AlignedWord) -> Word:
    assert word.time is not None
    return Word(word.text, word.time.start_ms, word.time.end_ms, word.time.source)


def _table(aligned: AlignedText) -> str:
    """Return a header, then a line for each word: its times in milliseconds, empty where it was not heard, and its
    score. A word has no tab inside."""
    times = ((f"{word.time.start_ms}\t{word.time.end_ms}" if word.time else "\t", word) for word in aligned.words)
    rows = (f"{time}\t{_score([word]):g}\t{' '.join(word.text.split())}\n" for time, word in times)
    return "start\tend\tscore\ttext\n" + "".join(rows)


# start and end in milliseconds, and the text
_Interval = tuple[int, int, str]


def _text_grid(aligned: AlignedText) -> str:
    """Return a file with two tiers of intervals, `words` and `lines`, of what was heard, in Praat's long form."""
    words = [(word.time.start_ms, word.time.end_ms, word.text) for word in aligned.words if word.time]
    lines = [
        (found[0].start_ms, found[-1].end_ms, line.text)
        for line in aligned.lines
        if (found := [word.time for word in line.words if word.time])
    ]
    end_ms = max([aligned.transcript.duration_ms, *(end for _, end, _ in words[-1:])])
    head = 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n'
    head += f"{_limits(0, end_ms)}tiers? <exists>\nsize = 2\nitem []:\n"
    return head + _tier(1, "words", words, end_ms) + _tier(2, "lines", lines, end_ms)


def _tier(number: int, name: str, spoken: Sequence[_Interval], end_ms: int) -> str:
    intervals = list(_filled(spoken, end_ms))
    head = f'    item [{number}]:\n        class = "IntervalTier"\n        name = "{name}"\n'
    head += f"{_limits(0, end_ms, 8)}        intervals: size = {len(intervals)}\n"
    return head + "".join(
        f"        intervals [{place}]:\n{_limits(start, end, 12)}            text = {_quoted(text)}\n"
        for place, (start, end, text) in enumerate(intervals, start=1)
    )


def _filled(spoken: Sequence[_Interval], end_ms: int) -> Iterator[_Interval]:
    """Yield the intervals, which do not overlap, and empty ones between them, so that there is no gap. Praat knows no
    interval without length."""
    at = 0
    for start, end, text in spoken:
        if start > at:
            yield at, start, ""
        if end > start:
            yield start, end, text
        at = end
    if end_ms > at:
        yield at, end_ms, ""


def _limits(start_ms: int, end_ms: int, columns: int = 0) -> str:
    space = " " * columns
    return f"{space}xmin = {start_ms / 1000}\n{space}xmax = {end_ms / 1000}\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
