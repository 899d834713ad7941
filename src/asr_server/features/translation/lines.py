"""The lines that are translated, and the outcome of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from asr_server.text.languages import LanguageTag


class Reason(StrEnum):
    """The reason why a line has no translation; `NONE` if it has one."""

    NONE = ""
    SAME_LANGUAGE = "same_language"  # it is in the target language already
    NO_WORDS = "no_words"  # nothing in it can be translated
    NO_ANSWER = "no_answer"  # no response had this line, or had its id exactly once
    UNCHANGED = "unchanged"  # the response repeated the source
    OTHER_SCRIPT = "other_script"  # the response was not written in the target's script
    TOO_LONG = "too_long"  # the response was far longer than a translation can be
    REFUSED = "refused"  # the endpoint refused the line
    ENDPOINT = "endpoint"  # the endpoint failed
    TIME = "time"  # the time limit was reached before


# Reasons that are no failure.
_EXPECTED = frozenset({Reason.NONE, Reason.SAME_LANGUAGE, Reason.NO_WORDS})


@dataclass(frozen=True, slots=True)
class TranslatedLine:
    """A text to translate: a cue or a segment."""

    text: str
    language: LanguageTag | None = None  # its own, or None if unknown


@dataclass(frozen=True, slots=True)
class Translated:
    """The outcome for one line."""

    text: str  # the translation, on one line; or, with a `reason`, the source text unchanged
    reason: Reason = Reason.NONE

    @property
    def translated(self) -> bool:
        return self.reason is Reason.NONE

    @property
    def kept(self) -> bool:  # in the source language because the translation failed
        return self.reason not in _EXPECTED


@dataclass(frozen=True, slots=True)
class TranslationConfig:
    """The options of a translation."""

    target: LanguageTag
    temperature: float
    limit_s: float  # the time for all lines together
    glossary: Mapping[str, str] = field(default_factory=dict)  # terms and their translations
    batch_lines: int = 20  # most lines in one request
