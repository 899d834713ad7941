"""The step of a transcription that applies `text_format`, `profanity` and `redact`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from asr_server.core.errors import InvalidInput
from asr_server.core.transcript import Segment
from asr_server.features.rewriting import number_words, personal_data, profanity
from asr_server.features.rewriting.edits import Edit, applied
from asr_server.features.rewriting.written_form import written_edits
from asr_server.features.speech_output.spoken_form import readings
from asr_server.processes.caller_work import in_thread
from asr_server.recordings.pipeline import RecordingStep
from asr_server.recordings.requests import PersonalData, Profanity, TextFormat, TextOptions
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import FeatureParts
from asr_server.text import languages, scripts

if TYPE_CHECKING:
    from asr_server.recordings.pipeline import BeginStep, RunOptions
    from asr_server.recordings.requests import RecordingRequest

Lists = Mapping[str, frozenset[str]]


class Rewriting:
    """Rewrites the transcripts of all requests that ask for it. `lists`: words by the ISO codes of languages."""

    def __init__(self, lists: Lists) -> None:
        self._lists = lists

    def check(self, request: RecordingRequest) -> None:
        """Raise `unsupported_value` if the request wants log-probabilities, whose tokens write the model's own text, or
        if it states a language that cannot be rewritten."""
        if "logprobs" in request.listed:
            raise InvalidInput(
                f"'include' lists the tokens of the model's own text: leave out '{request.chosen_text_options[0]}'.",
                code="unsupported_value",
                param="include",
            )
        language = languages.code(request.spoken_language or "")
        for reason, param in _without_effect(request, language, self._lists) if language else ():
            raise InvalidInput(reason, code="unsupported_value", param=param)

    async def prepare(self, request: RecordingRequest, options: RunOptions) -> BeginStep:
        """Return the step of one recording. Raises as `check`."""
        self.check(request)
        return lambda signal, group: TextStep(request, self._lists)


def _without_effect(text: TextOptions, language: str, lists: Lists) -> Iterator[tuple[str, str]]:
    """Yield why an option has no effect on text in the language, and its name."""
    if text.text_format is not TextFormat.MODEL and language not in number_words.LANGUAGES:
        known = ", ".join(number_words.LANGUAGES)
        yield f"'text_format' has no effect on '{language}', only on {known}.", "text_format"
    if text.profanity is not Profanity.KEEP and language not in lists:
        yield f"'profanity' has no effect on '{language}': the server has lists of {', '.join(lists)}.", "profanity"


class TextStep(RecordingStep):
    """The rewriting of one recording."""

    def __init__(self, options: TextOptions, lists: Lists) -> None:
        self._options = options
        self._lists = lists
        self._warnings: dict[str, None] = {}  # in the order in which they were found, each once

    @property
    def warnings(self) -> Sequence[str]:
        return tuple(self._warnings)

    def rewritten(self, segment: Segment) -> Segment:
        """Return the segment with its numbers in the requested form and the words of the lists masked. Each span is
        rewritten by itself, so that a stream and a whole answer have the same text."""
        language, options = languages.code(segment.language), self._options
        for reason, _ in _without_effect(options, language, self._lists) if language else ():
            self._warnings[reason] = None
        if language in number_words.LANGUAGES:
            if options.text_format is TextFormat.WRITTEN:
                segment = applied(segment, written_edits(segment.text, language))
            elif options.text_format is TextFormat.SPOKEN:
                found = readings(segment.text, language)
                segment = applied(segment, [Edit(one.start, one.end, one.words) for one in found])
        if options.profanity is not Profanity.KEEP and (words := self._lists.get(language)):
            segment = applied(segment, list(profanity.masked(segment.text, words, options.profanity)))
        return segment

    async def mapped(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return the segments with personal data masked. All text of a speaker is searched as one, since a number may
        begin in one span and end in the next."""
        if not self._options.redact:
            return segments
        for language in {languages.code(segment.language) for segment in segments} - {"", *number_words.LANGUAGES}:
            self._warnings[f"'redact' does not find numbers that are said in words in '{language}'."] = None
        # In a thread: hours of text take seconds, and live sessions share the event loop.
        return await in_thread(_redacted, segments, self._options.redact)


def _redacted(segments: Sequence[Segment], kinds: Sequence[PersonalData]) -> list[Segment]:
    """Return the segments with data of these kinds replaced by the name of its kind. Data that spans several segments
    of a speaker is replaced in each of them."""
    found = list(segments)
    for speaker in {segment.speaker for segment in segments}:
        numbers = [number for number, segment in enumerate(segments) if segment.speaker == speaker]
        own = _redacted_speech([segments[number] for number in numbers], kinds)
        for number, segment in zip(numbers, own, strict=True):
            found[number] = segment
    return found


def _redacted_speech(segments: Sequence[Segment], kinds: Sequence[PersonalData]) -> list[Segment]:
    parts, before, starts, length = [], "", [], 0
    for segment in segments:
        joint = scripts.joint(before, segment.text)
        parts.append((joint + segment.text, languages.code(segment.language)))
        starts.append(length + len(joint))
        length += len(joint) + len(segment.text)
        before = segment.text
    edits = personal_data.find(parts, kinds)
    # The tokens of the model's text would reveal what was replaced.
    return [
        replace(applied(segment, list(_within(edits, start, segment.text))), spoken=())
        for segment, start in zip(segments, starts, strict=True)
    ]


def _within(edits: Sequence[Edit], start: int, text: str) -> Iterator[Edit]:
    """Yield the edits that touch `text`, which begins at `start` in a longer text, with their places in `text`."""
    first = bisect_right(edits, start, key=lambda edit: edit.end)
    for edit in edits[first : bisect_left(edits, start + len(text), key=lambda edit: edit.start)]:
        own = replace(edit, start=max(0, edit.start - start), end=min(len(text), edit.end - start))
        if text[own.start : own.end].strip():
            yield own


def _build(core: CoreParts) -> FeatureParts:
    folder = core.settings.profanity_lists
    rewriting = Rewriting(profanity.read_lists(Path(folder)) if folder else {})
    return FeatureParts(check_rewriting=rewriting.check, steps={"chosen_text_options": rewriting.prepare})


SERVER = ServerFeature(build=_build)
