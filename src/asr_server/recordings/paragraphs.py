"""Divides a transcript into paragraphs, as one would write it down.

A paragraph has one speaker and no pause of `PAUSE_MS` inside. From `FULL_CHARS` characters or `FULL_MS` on it is full,
and ends with its sentence. If no sentence ends before `MOST_CHARS` or `MOST_MS`, as in Thai or in a text without
punctuation, it ends at its longest pause since it was full.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from asr_server.core.transcript import Segment
from asr_server.text import scripts
from asr_server.text.sentences import sentences
from asr_server.text.words import SENTENCE_MARKS, ends_sentence

PAUSE_MS = 2_000
FULL_CHARS = 600
MOST_CHARS = 1_200
# A reader looks for a place by its time, and plays from there.
FULL_MS = 15_000
MOST_MS = 30_000
# The text around an end mark that decides whether it ends a sentence: words and abbreviations are shorter.
_CONTEXT_CHARS = 60
_MARK = re.compile(f"[{SENTENCE_MARKS}][^\\w\\s]*\\s*")


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """A part of a text that no paragraph divides."""

    text: str  # with the blanks around it
    start_ms: int
    end_ms: int  # which may be before the end of an earlier piece
    speaker: str | None
    segment: int  # the number of the text that it is a part of, from 0 on
    word: int | None = None  # the number of its word among the words of all texts, None if they have no times


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph. Numbers of segments and words count from 0."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str | None  # a letter or a name, None where speakers are not distinguished
    first_segment: int
    last_segment: int  # which may also be the first one of the next paragraph
    first_word: int | None = None  # None where the first or the last word has no times
    last_word: int | None = None

    def listed(self, *, segments: bool = True, words: bool = False) -> dict[str, Any]:
        """Return the paragraph as answers list it, in seconds; with the numbers of its segments and of its words."""
        listed: dict[str, Any] = {"start": self.start_ms / 1000, "end": self.end_ms / 1000, "text": self.text}
        listed |= {} if self.speaker is None else {"speaker": self.speaker}
        listed |= {"first_segment": self.first_segment, "last_segment": self.last_segment} if segments else {}
        has_words = words and self.first_word is not None and self.last_word is not None
        return listed | ({"first_word": self.first_word, "last_word": self.last_word} if has_words else {})


def paragraphs(segments: Sequence[Segment], language: str) -> list[Paragraph]:
    """Return the paragraphs of segments in the order of time. They end between words where these have times, else
    after end marks, whose times are estimated.

    `language` is a language tag, "" if it is not known. The texts joined by `scripts.join` are those of the segments.
    """
    return grouped(list(_pieces(segments)), language)


def grouped(pieces: Sequence[SpokenPiece], language: str) -> list[Paragraph]:
    """Return the paragraphs of pieces in the order of time. None of them is divided."""
    breaks = [i for i, (one, other) in enumerate(pairwise(pieces), 1) if _breaks(one, other)]
    return [
        _paragraph(pieces[first:end])
        for start, stop in pairwise([0, *breaks, len(pieces)])
        if start < stop
        for first, end in _divided(pieces[start:stop], start, language)
    ]


def _breaks(one: SpokenPiece, other: SpokenPiece) -> bool:
    return other.speaker != one.speaker or other.start_ms - one.end_ms >= PAUSE_MS


def _pieces(segments: Sequence[Segment]) -> Iterator[SpokenPiece]:
    first_word = 0
    for number, segment in enumerate(segments):
        starts = _word_starts(segment)
        cuts = starts if starts else [0, *(mark.end() for mark in _MARK.finditer(segment.text))]
        cuts = sorted({0, *cuts[1:], len(segment.text)})
        for i, (start, end) in enumerate(pairwise(cuts)):
            if starts:
                word = segment.words[i]
                times, number_of_word = (word.start_ms, word.end_ms), first_word + i
            else:
                times, number_of_word = (_time(segment, start), _time(segment, end)), None
            yield SpokenPiece(segment.text[start:end], *times, segment.speaker, number, number_of_word)
        first_word += len(segment.words)


def _word_starts(segment: Segment) -> list[int]:
    """Return where each word begins in the text, or nothing if the text does not have these words."""
    starts, position = [], 0
    for word in segment.words:
        found = segment.text.find(word.text, position)
        if found < 0:
            return []
        starts.append(found)
        position = found + len(word.text)
    return starts


def _time(segment: Segment, offset: int) -> int:
    """Return when the character is said, if all take the same time."""
    length_ms = segment.end_ms - segment.start_ms
    return segment.start_ms + length_ms * offset // max(1, len(segment.text))


def _divided(turn: Sequence[SpokenPiece], offset: int, language: str) -> Iterator[tuple[int, int]]:
    """Yield the first piece of each paragraph and the one after its last, counted from `offset` on.

    `turn`: pieces of one speaker without a long pause.
    """
    text, ends = _text(turn)
    first = i = 0
    full: list[int] = []  # the pieces that a full paragraph may end with
    while i < len(turn) - 1:
        length = ends[i] - (ends[first - 1] if first else 0)
        if length >= FULL_CHARS or turn[i].end_ms - turn[first].start_ms >= FULL_MS:
            full.append(i)
        too_long = length >= MOST_CHARS or turn[i + 1].end_ms - turn[first].start_ms > MOST_MS
        if full and _ends_sentence(text, ends[i], language):
            full = [i]
        elif not too_long:
            i += 1
            continue
        cut = max(full or [i], key=lambda at: (turn[at + 1].start_ms - turn[at].end_ms, at))
        yield offset + first, offset + cut + 1
        first = i = cut + 1
        full = []
    yield offset + first, offset + len(turn)


def _ends_sentence(text: str, end: int, language: str) -> bool:
    """True if a sentence of the text ends at `end`, with an end mark and what belongs to it."""
    start = max(0, end - _CONTEXT_CHARS)
    if not ends_sentence(text[start:end]):
        return False
    return any(span.end == end - start for span in sentences(text[start : end + _CONTEXT_CHARS], language))


def _text(pieces: Sequence[SpokenPiece]) -> tuple[str, list[int]]:
    """Return the pieces as one text, and where each ends in it, without the blanks after it."""
    parts: list[str] = []
    before: SpokenPiece | None = None
    for piece in pieces:
        if before is None:
            parts.append(piece.text.lstrip())
        elif piece.segment == before.segment:
            parts.append(piece.text)
        else:
            parts[-1] = parts[-1].rstrip()
            parts.append(scripts.joint(parts[-1], piece.text.lstrip()) + piece.text.lstrip())
        before = piece
    offsets = accumulate((len(part) for part in parts), initial=0)
    return "".join(parts).rstrip(), [start + len(part.rstrip()) for start, part in zip(offsets, parts, strict=False)]


def _paragraph(pieces: Sequence[SpokenPiece]) -> Paragraph:
    first, last = pieces[0], pieces[-1]
    return Paragraph(
        first.start_ms,
        max(piece.end_ms for piece in pieces),
        _text(pieces)[0],
        first.speaker,
        first.segment,
        last.segment,
        first.word,
        last.word,
    )
