"""Translates lines: in batches, with checks of the responses, retries, and the source text if everything fails.

Invariant: the result has as many lines as the input, in the same order, each with its translation or its source text.
"""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from asr_server.core.errors import TranslationError, TranslationUnavailable
from asr_server.features.translation.endpoint import NoResponse, PromptRefused
from asr_server.features.translation.prompt import TranslationConfig, batches, build_prompt
from asr_server.text.scripts import LETTER_NAMES, TURNING, letter_names

if TYPE_CHECKING:
    from asr_server.features.translation.endpoint import ChatEndpoint
    from asr_server.text.languages import LanguageTag


class Reason(StrEnum):
    """The reason why a line has no translation; `NONE` if it has one."""

    NONE = ""
    SAME_LANGUAGE = "same_language"  # it is in the target language already
    NO_WORDS = "no_words"  # nothing in it can be translated
    NO_ANSWER = "no_answer"  # no response had exactly one usable text for this line
    UNCHANGED = "unchanged"  # the response repeated the source
    OTHER_SCRIPT = "other_script"  # the response was not written in the target's script
    TOO_LONG = "too_long"  # the response was far longer than a translation can be
    REFUSED = "refused"  # the endpoint refused the line
    ENDPOINT = "endpoint"  # the endpoint failed
    TIME = "time"  # the time limit was reached first


# Reasons that are not failures.
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


# The reasoning that some models write first. Some servers cut off its opening tag, and a used-up token budget cuts off
# the closing one.
_THOUGHT = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.DOTALL | re.IGNORECASE)
_START = re.compile(r"[{\[]")
# Positions in prose that are tried as the beginning of an object.
_MAX_STARTS = 64
_ID_NAMES = ("id", "index", "line")
_CLOCK = r"(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}"
# The head of a cue as models copy it: the number on its own line, the times, and WebVTT's settings after them.
# `(?<!...)` lets this and the arrow begin only where a run of spaces or dashes begins: a search that begins at each
# of its characters takes quadratic time.
_TIMING = re.compile(
    rf"(?:^[ \t]*\d+[ \t]*\r?\n)?(?<![ \t])[ \t]*{_CLOCK}[ \t]*--+>[ \t]*{_CLOCK}(?:[ \t]+\w+:\S+)*", re.MULTILINE
)
_HEADER = re.compile(r"\A\s*WEBVTT[^\r\n]*[\r\n]+")
# Tags of SubRip and WebVTT, WebVTT's time tags, and override blocks of Advanced SubStation.
_MARKUP = re.compile(rf"</?(?:i|b|u|s|c|v|font|lang|ruby|rt)\b[^<>]*>|<{_CLOCK}>|\{{\\[^{{}}]*\}}", re.IGNORECASE)
_ARROW = re.compile(r"(?<!-)-{2,}>")
_MAX_NESTED = 8
_NO_OPENING = str.maketrans("", "", "<{")
_GAPS = re.compile(r"[\s\x1c-\x1f\x85\u2028\u2029]+")
# Control characters other than white space, and lone surrogates, which UTF-8 cannot encode.
_REMOVED = {"Cc", "Cs"}
_DROPPED = TURNING + "\ufeff"


def read_response(written: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the texts that `written` has for `ids`; ids that are missing or doubtful are left out.

    The result is empty if an id is not among `ids` (the lines were renumbered), or if the last id is missing in a
    complete response (two lines were merged and the rest moved up). A response that breaks off counts as far as it
    goes. An id with two different texts is left out.
    """
    found, whole = _largest(_THOUGHT.sub("", written))
    texts = {name: value.strip() for name, value in found.items() if isinstance(value, str)}
    if len(ids) == 1:
        # A single line can belong to one id only, whatever id the model gave it.
        return dict(zip(ids, texts.values(), strict=True)) if len(texts) == 1 and whole else {}
    return {} if not texts.keys() <= set(ids) or (whole and ids[-1] not in texts) else texts


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of an object without names that have two different values."""
    known = list(pairs)
    first = dict(reversed(known))
    twice = {name for name, value in known if value != first[name]}
    return {name: value for name, value in first.items() if name not in twice}


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, strict=False)


def _largest(text: str) -> tuple[dict[str, Any], bool]:
    """Return the largest JSON object in the text, or one that breaks off; and whether it was complete."""
    found: dict[str, Any] = {}
    position = 0
    for _ in range(_MAX_STARTS):
        start = _START.search(text, position)
        if start is None:
            break
        try:
            value, position = _DECODER.raw_decode(text, start.start())
            found = max(found, _flat(value), key=len)
        except (ValueError, RecursionError):
            position = start.end()
            with suppress(ValueError):  # raised if the text is invalid and does not just break off
                if not found and (partial := _flat(from_json(text[start.start() :], allow_partial=True))):
                    return partial, False
    return found, True


def _flat(value: Any) -> dict[str, Any]:
    """Return an object, perhaps inside one wrapper object; or the texts of a list of objects that have an id each."""
    if isinstance(value, list):
        return _unique(filter(None, map(_entry, value)))
    if not isinstance(value, dict):
        return {}
    inner = [part for part in value.values() if isinstance(part, dict | list)]
    return _flat(inner[0]) if len(inner) == 1 else value


def _entry(entry: Any) -> tuple[str, Any] | None:
    """Return the pair of an entry such as {"id": "101", "text": "..."}; None for any other."""
    fields = dict(entry) if isinstance(entry, dict) else {}
    name = next((str(fields.pop(n)) for n in _ID_NAMES if n in fields), None)
    return (name, next(iter(fields.values()))) if name and len(fields) == 1 else None


def one_line(text: str) -> str:
    """Return the text on one line: any white space becomes one space, characters that cannot be encoded are removed."""
    spaced = _GAPS.sub(" ", text)
    return "".join(c for c in spaced if unicodedata.category(c) not in _REMOVED and c not in _DROPPED).strip()


def cue_text(text: str) -> str:
    """Return a translation as the text of a cue: one line without times, `-->` or markup, perhaps empty.

    Removing markup may join the text around it into new markup, so this is repeated. If markup is nested deeper than
    any real markup, its opening brackets are removed.
    """
    found = one_line(_TIMING.sub(" ", _MARKUP.sub("", _HEADER.sub("", text))))
    for _ in range(_MAX_NESTED):
        cleaner = one_line(_ARROW.sub("→", _MARKUP.sub("", found)))
        if cleaner == found:
            return found
        found = cleaner
    return one_line(_ARROW.sub("→", found.translate(_NO_OPENING)))


# Nothing more is sent to an endpoint after `_MAX_FAILURES` failures in a row, each of which `ChatEndpoint` has already
# retried, or after `_PATIENCE` responses per concurrent request without one usable line; a batch is tried twice. After
# the first translation, only failures count, up to the product of the two limits: the endpoint may be restarting, which
# all concurrent requests notice at once.
_MAX_FAILURES = 3
_PATIENCE = 4
# A longer translation is a comment of the model or a loop.
_LENGTH_FREE, _LENGTH_FACTOR = 80, 6
# A translation may be longer by this factor before markup and times are removed.
_MARKUP_FACTOR = 3
# A shorter text may be the same in both languages: names, numbers, "OK".
_SAME_LETTERS = 12
# Categories of visible characters: a cue with only joiners and direction marks would look empty.
_VISIBLE = "LNPS"
# Latin letters occur in every script: names, brands, formulas. Only this many without own letters mean a wrong script.
_LATIN_ALONE = 12
# Letters of a third script do not occur by chance; a single one may be a symbol.
_THIRD_ALONE = 2


async def translate(
    endpoint: ChatEndpoint, lines: Sequence[TranslatedLine], config: TranslationConfig
) -> list[Translated]:
    """Return one outcome for each line, in order. Lines in the target language or without words are not sent.

    Lines without a usable translation keep their source text and have a reason. Raises `TranslationUnavailable` if the
    endpoint denies access, and `translation_failed` if no response was readable.
    """
    return await _Run(endpoint, lines, config).outcomes()


class _Run:
    """One call of `translate`: its lines by their indices, and when to send no more."""

    def __init__(self, endpoint: ChatEndpoint, lines: Sequence[TranslatedLine], config: TranslationConfig) -> None:
        self._endpoint, self._lines, self._config = endpoint, lines, config
        self._patience = _PATIENCE * endpoint.settings.translate_concurrency
        # Times that a line contains are removed before it is sent, and so cannot come back.
        self._texts = [cue_text(line.text) for line in lines]
        self._found: dict[int, str] = {}
        # Why a line has no translation (yet).
        self._reasons = {index: self._expected(index) for index in range(len(lines))}
        self._wanted = [index for index, reason in self._reasons.items() if reason is Reason.NONE]
        self._answered = False  # a response was readable
        self._unproductive = self._failures = 0  # in a row: responses without a usable line, and failures
        self._cause = ""  # the kind of the last failure
        self._given_up = False  # nothing more is sent
        self._denied: TranslationUnavailable | None = None

    def _expected(self, index: int) -> Reason:
        """Return why the line needs no translation; `NONE` if it does."""
        language = self._lines[index].language
        if not any(char.isalnum() for char in self._texts[index]):
            return Reason.NO_WORDS
        return Reason.SAME_LANGUAGE if language and language.same_as(self._config.target) else Reason.NONE

    async def outcomes(self) -> list[Translated]:
        if self._wanted:
            await self._work()
        return [
            Translated(self._found[i]) if i in self._found else Translated(line.text, self._reasons[i])
            for i, line in enumerate(self._lines)
        ]

    async def _work(self) -> None:
        """Translate within the time limit. Raises if no response was readable. If responses were readable but unusable,
        the lines keep their source texts."""
        groups = iter(batches(self._texts, self._wanted, self._config.batch_lines))
        try:
            # No more workers than the endpoint's concurrency, so that requests of other callers get their turns. The
            # workers share one iterator, which is safe on one event loop.
            async with asyncio.timeout(self._config.limit_s), asyncio.TaskGroup() as tasks:
                for _ in range(self._endpoint.settings.translate_concurrency):
                    tasks.create_task(self._worker(groups))
        except TimeoutError:
            self._give_up(f"not one line within {self._config.limit_s:g} s", Reason.TIME)
        if self._denied and not self._found:
            raise self._denied
        if not self._answered:
            raise TranslationError(f"The translation endpoint translated nothing: {self._cause}.")

    async def _worker(self, groups: Iterable[list[int]]) -> None:
        for group in groups:
            missing = await self._attempt(group)
            # Send them once more together: most mistakes happen only once. Then one by one, which cannot mix up lines.
            if len(missing) > 1:
                missing = await self._attempt(missing)
            for index in missing:
                await self._attempt([index])

    async def _attempt(self, asked: Sequence[int]) -> Sequence[int]:
        """Send one prompt for the lines `asked`; returns the lines that need another."""
        if self._given_up:
            return ()
        languages = {self._lines[index].language for index in asked}
        prompt = build_prompt(self._texts, asked, languages.pop() if len(languages) == 1 else None, self._config)
        try:
            written = await self._endpoint.complete(prompt)
        except PromptRefused as refusal:
            self._reasons |= dict.fromkeys(asked, Reason.REFUSED)
            self._note_unproductive(str(refusal))
            # One line may be the reason: the others may be accepted by themselves.
            for index in asked if len(asked) > 1 else ():
                await self._attempt([index])
            return ()
        except NoResponse as failure:
            self._reasons |= dict.fromkeys(asked, Reason.ENDPOINT)
            self._cause = str(failure)
            self._failures += 1
            if self._failures >= _MAX_FAILURES * (self._patience if self._found else 1):
                self._give_up(self._cause, Reason.ENDPOINT)
            return asked
        except TranslationUnavailable as denied:
            self._denied = denied
            self._give_up(denied.code, Reason.ENDPOINT)
            return ()
        given = read_response(written, prompt.ids)
        self._answered |= bool(given)
        self._failures = 0
        for index, name in zip(asked, prompt.ids, strict=True):
            text, self._reasons[index] = _checked(self._texts[index], given.get(name, ""), self._config.target)
            if self._reasons[index] is Reason.NONE:
                self._found[index] = text
        missing = [index for index in asked if index not in self._found]
        if len(missing) == len(asked):
            self._note_unproductive("no usable answer")
        return missing

    def _note_unproductive(self, cause: str) -> None:
        self._cause = cause
        self._unproductive += 1
        if self._unproductive >= self._patience and not self._found:
            self._give_up(cause, Reason.NO_ANSWER)

    def _give_up(self, cause: str, reason: Reason) -> None:
        """Send no more prompts; every line without an outcome gets this reason."""
        self._given_up, self._cause = True, cause
        self._reasons |= {index: reason for index in self._wanted if self._reasons[index] is Reason.NONE}


def _checked(source: str, written: str, target: LanguageTag) -> tuple[str, Reason]:
    """Return `written` as the text of a cue, and the reason why it cannot be the translation of `source`; `NONE` if it
    can."""
    longest = _LENGTH_FREE + _LENGTH_FACTOR * len(source)
    # Checked before cleaning, which may take long for a huge text.
    if len(written) > _MARKUP_FACTOR * longest:
        return "", Reason.TOO_LONG
    text = cue_text(written)
    if not any(unicodedata.category(char)[0] in _VISIBLE for char in text):
        return text, Reason.NO_ANSWER
    if len(text) > longest:
        return text, Reason.TOO_LONG
    if text.casefold() == source.casefold() and sum(char.isalpha() for char in source) >= _SAME_LETTERS:
        return text, Reason.UNCHANGED
    return text, Reason.OTHER_SCRIPT if wrong_script(text, target) else Reason.NONE


def wrong_script(text: str, language: LanguageTag) -> bool:
    """Return True if the text is clearly not in the language's script; False if that script is not listed here."""
    own_names = LETTER_NAMES.get(language.script)
    if own_names is None:
        return False
    own = latin = third = 0
    for name in letter_names(text):
        own += name in own_names
        latin += name == "LATIN" and name not in own_names
        third += name != "LATIN" and name not in own_names
    return third > own if own else third >= _THIRD_ALONE or latin >= _LATIN_ALONE
