"""The text of a job that speaks: its chapters as they are stored, and the parts that they are spoken in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter

from asr_server.features.speech_output.chapters import Chapter
from asr_server.features.speech_output.durations import spoken_s
from asr_server.text.sentences import TextSpan, sentences

# What is lost when the server dies is less than a part. A part is a whole number of sentences.
_PART_S = 120.0

_stored_chapters = TypeAdapter(tuple[Chapter, ...])


@dataclass(frozen=True, slots=True)
class TextPart:
    """Some sentences of a chapter. `begin`: the first one's place in the text of all chapters, in characters."""

    chapter: int
    begin: int
    text: str


def dumped(chapters: tuple[Chapter, ...]) -> bytes:
    """The chapters as they are stored."""
    return _stored_chapters.dump_json(chapters)


def loaded(stored: bytes) -> tuple[Chapter, ...]:
    """The same chapters. Raises ValueError."""
    return _stored_chapters.validate_json(stored)


def text_parts(chapters: tuple[Chapter, ...], language: str) -> list[TextPart]:
    """All sentences, in parts of about two minutes. A part ends with its chapter."""
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
