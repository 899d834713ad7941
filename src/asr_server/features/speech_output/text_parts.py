"""The text of a job that speaks: its chapters as they are stored, and the parts that they are spoken in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter

from asr_server.features.speech_output.chapters import Chapter
from asr_server.features.speech_output.script import spoken_s
from asr_server.text.sentences import TextSpan, sentences

# A server that dies loses less than a part. A part is a whole number of sentences.
_PART_S = 120.0

_stored_chapters = TypeAdapter(tuple[Chapter, ...])


@dataclass(frozen=True, slots=True)
class TextPart:
    """Some sentences of a chapter."""

    chapter: int
    begin: int  # characters of all chapters before the first sentence
    text: str


def dumped(chapters: tuple[Chapter, ...]) -> bytes:
    """Return the chapters in the form in which they are stored."""
    return _stored_chapters.dump_json(chapters)


def loaded(stored: bytes) -> tuple[Chapter, ...]:
    """Return the chapters that `dumped` has stored. Raises ValueError."""
    return _stored_chapters.validate_json(stored)


def text_parts(chapters: tuple[Chapter, ...], language: str) -> list[TextPart]:
    """Return all sentences, in parts of about two minutes. A part ends with its chapter."""
    found, begin = [], 0
    for number, chapter in enumerate(chapters):
        for spans in _grouped(sentences(chapter.text, language)):
            start, end = spans[0].start, spans[-1].end
            found.append(TextPart(number, begin + start, chapter.text[start:end]))
        begin += len(chapter.text)
    return found


def _grouped(spans: list[TextSpan]) -> Iterator[list[TextSpan]]:
    group: list[TextSpan] = []
    group_s = 0.0
    for span in spans:
        group.append(span)
        group_s += spoken_s(span.text)
        if group_s >= _PART_S:
            yield group
            group, group_s = [], 0.0
    if group:
        yield group
