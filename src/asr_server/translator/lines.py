"""What goes into a translation and what comes out, line by line. No prompt, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from asr_server.text.target_languages import LanguageTag


class Reason(StrEnum):
    """Why a line has no translation; `NONE` where it has one."""

    NONE = ""
    SAME_LANGUAGE = "same_language"  # it is in the target language already
    NO_WORDS = "no_words"  # nothing in it can be translated
    NO_ANSWER = "no_answer"  # the endpoint never answered for this line, or not with its one id
    UNCHANGED = "unchanged"  # the answer was the source
    OTHER_SCRIPT = "other_script"  # the answer was not written in the target's script
    TOO_LONG = "too_long"  # the answer was far longer than a translation can be
    REFUSED = "refused"  # the endpoint refused the line
    ENDPOINT = "endpoint"  # the endpoint failed
    TIME = "time"  # the time was used up before


# Lines with these reasons are as they should be.
_FINE = frozenset({Reason.NONE, Reason.SAME_LANGUAGE, Reason.NO_WORDS})


@dataclass(frozen=True, slots=True)
class Line:
    """One text to translate, by itself: a cue or a segment. `tongue`: its language, or None when nobody knows."""

    text: str
    tongue: LanguageTag | None = None


@dataclass(frozen=True, slots=True)
class Translated:
    """One line's outcome: its translation, on one line; or, for a `reason`, the source text as it was."""

    text: str
    translated: bool
    reason: Reason

    @property
    def kept(self) -> bool:
        """Whether this stayed in the source language although it should not have."""
        return self.reason not in _FINE


@dataclass(frozen=True, slots=True)
class TranslationOrder:
    """How to translate. `glossary`: terms and how they must be translated. `limit_s`: the time all of it may take."""

    target: LanguageTag
    temperature: float
    limit_s: float
    glossary: Mapping[str, str] = field(default_factory=dict)
