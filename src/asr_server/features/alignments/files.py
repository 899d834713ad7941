"""Renders an aligned text: as JSON, as subtitles, as a table of words, and as a TextGrid of Praat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from asr_server.features.alignments.alignments import AlignedText
from asr_server.features.alignments.requests import AlignedWord, AlignmentFormat
from asr_server.recordings.render import JSON, TEXT, dump, render_cues, usage
from asr_server.recordings.requests import ResponseFormat, Result
from asr_server.subtitle import cue_segmentation
from asr_server.subtitle.cue_segmentation import Passage
from asr_server.subtitle.cues import CueConfig, SpeakerStyle
from asr_server.text import languages, scripts


def render(aligned: AlignedText, answer: AlignmentFormat) -> Result:
    sources = {word.time.source.value for word in aligned.words if word.time}
    source = "mixed" if len(sources) > 1 else next(iter(sources), None)
    match answer:
        case AlignmentFormat.JSON:
            return Result(dump(_listed(aligned)), JSON, time_source=source)
        case AlignmentFormat.TSV:
            content = _table(aligned).encode()
        case AlignmentFormat.TEXTGRID:
            content = _text_grid(aligned).encode()
        case _:
            content = _subtitles(aligned, ResponseFormat(answer.value))
    return Result(content, TEXT, file_name=f"alignment.{answer.value}", time_source=source)


def _listed(aligned: AlignedText) -> dict[str, Any]:
    transcript = aligned.transcript
    return {
        "task": "align",
        "language": transcript.language.lower() or "auto",
        "language_code": languages.code(transcript.language),
        "duration": transcript.duration_ms / 1000,
        "score": _scored(aligned.words)["score"],
        "segments": [{"text": line, **_scored(words)} for line, words in aligned.lines],
        "words": [
            {"word": word.text, **_scored([word]), "source": word.time.source.value if word.time else None}
            for word in aligned.words
        ],
        "usage": usage(transcript),
    }


def _scored(words: Sequence[AlignedWord]) -> dict[str, float | None]:
    """Return the start and the end of the words in seconds, None if none was heard, and the mean of their scores."""
    found = [word.time for word in words if word.time]
    return {
        "start": found[0].start_ms / 1000 if found else None,
        "end": found[-1].end_ms / 1000 if found else None,
        "score": round(sum(word.score for word in words) / max(1, len(words)), 4),
    }


def _subtitles(aligned: AlignedText, wanted: ResponseFormat) -> bytes:
    """Return a file of the words that have times. Each line counts as a speaker without a name, so that no cue has
    words of two lines."""
    passages = [
        Passage(scripts.join(word.text for word in words), words, speaker=str(number))
        for number, (_, line) in enumerate(aligned.lines, start=1)
        if (words := [word.time for word in line if word.time])
    ]
    config = CueConfig(speaker_style=SpeakerStyle.NONE)
    return render_cues(cue_segmentation.cues(passages, config, aligned.transcript.duration_ms), wanted)


def _table(aligned: AlignedText) -> str:
    """Return a header, then a line for each word: its times in milliseconds, empty if it was not heard, its score and
    its text, which contains no tab."""
    times = ((f"{word.time.start_ms}\t{word.time.end_ms}" if word.time else "\t", word) for word in aligned.words)
    rows = (f"{time}\t{round(word.score, 4):g}\t{' '.join(word.text.split())}\n" for time, word in times)
    return "start\tend\tscore\ttext\n" + "".join(rows)


_Interval = tuple[int, int, str]  # start and end in milliseconds, and the text


def _text_grid(aligned: AlignedText) -> str:
    """Return the words and lines that were heard as a file in Praat's short form: two tiers, `words` and `lines`."""
    heard = [(line, found) for line, words in aligned.lines if (found := [word.time for word in words if word.time])]
    words = [(word.start_ms, word.end_ms, word.text) for _, found in heard for word in found]
    lines = [(found[0].start_ms, found[-1].end_ms, line) for line, found in heard]
    end_ms = max([aligned.transcript.duration_ms, *(end for _, end, _ in words)])
    head = f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n{end_ms / 1000}\n<exists>\n2\n'
    tiers = [("words", list(_filled(words, end_ms))), ("lines", list(_filled(lines, end_ms)))]
    return head + "".join(
        f'"IntervalTier"\n"{name}"\n0\n{end_ms / 1000}\n{len(intervals)}\n'
        + "".join('{}\n{}\n"{}"\n'.format(a / 1000, b / 1000, text.replace('"', '""')) for a, b, text in intervals)
        for name, intervals in tiers
    )


def _filled(spoken: Sequence[_Interval], end_ms: int) -> Iterator[_Interval]:
    """Yield the intervals, which do not overlap, and empty ones that fill the gaps. Intervals of length 0, which Praat
    does not allow, are left out."""
    at = 0
    for start, end, text in [*spoken, (end_ms, end_ms, "")]:
        if start > at:
            yield at, start, ""
        if end > start:
            yield start, end, text
        at = end
