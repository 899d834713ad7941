"""Translates lines: batches, checks of the responses, second tries, and the source text where all fails.

Invariant: the result has as many lines as the input, in the same order, each with its translation or its source text.
"""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from asr_server.core.errors import TranslationError, TranslationFailed
from asr_server.features.translation.endpoint import NoResponse, PromptRefused
from asr_server.features.translation.lines import Reason, Translated, TranslatedLine, TranslationConfig
from asr_server.features.translation.prompt import batches, build_prompt
from asr_server.text.languages import LanguageTag
from asr_server.text.scripts import LETTER_NAMES, TURNING, letter_names

if TYPE_CHECKING:
    from asr_server.features.translation.endpoint import ChatEndpoint
    from asr_server.text.languages import LanguageTag

Pairs = list[tuple[str, Any]]

# The reasoning that some models write first. Some servers cut off its opening tag, a used-up token budget the closing
# one.
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
    pairs, whole = _pairs(_THOUGHT.sub("", written))
    texts = [(name, value.strip()) for name, value in pairs if isinstance(value, str)]
    if len(ids) == 1:
        # A single line can belong to one id alone, whatever id the model gave it.
        return {ids[0]: texts[0][1]} if len(texts) == 1 and whole else {}
    first = dict(reversed(texts))
    if not first.keys() <= set(ids) or (whole and ids[-1] not in first):
        return {}
    twice = {name for name, text in texts if text != first[name]}
    return {name: text for name, text in first.items() if name not in twice}


class _Object(list[tuple[str, Any]]):
    """The pairs of a JSON object. A dict would keep only the last of names that occur twice."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, strict=False)


def _pairs(text: str) -> tuple[Pairs, bool]:
    """Return the pairs of the largest JSON value in the text, or of one that breaks off; and whether it was
    complete."""
    found: Pairs = []
    position = 0
    for _ in range(_MAX_STARTS):
        start = _START.search(text, position)
        if start is None:
            break
        try:
            value, position = _DECODER.raw_decode(text, start.start())
            found = max(found, list(_flat(value)), key=len)
        except (ValueError, RecursionError):
            position = start.end()
            if not found and (partial := list(_flat(_parse_partial(text[start.start() :])))):
                return partial, False
    return found, True


def _parse_partial(text: str) -> Any:
    """Return the complete part of a JSON value that breaks off; None if it is invalid for another reason."""
    try:
        return from_json(text, allow_partial=True)
    except ValueError:
        return None


def _flat(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the pairs of an object, perhaps inside one wrapper object; or of a list of objects that have an id each."""
    if isinstance(value, dict | _Object):
        pairs = list(value.items()) if isinstance(value, dict) else value
        inner = [v for _, v in pairs if isinstance(v, dict | list)]
        yield from _flat(inner[0]) if len(inner) == 1 else pairs
    elif isinstance(value, list):
        yield from filter(None, map(_entry, value))


def _entry(entry: Any) -> tuple[str, Any] | None:
    """Return the pair of an entry such as {"id": "101", "text": "..."}; None for any other."""
    fields = dict(entry) if isinstance(entry, dict | _Object) else {}
    name = next((str(fields.pop(n)) for n in _ID_NAMES if n in fields), None)
    return (name, next(iter(fields.values()))) if name and len(fields) == 1 else None


def one_line(text: str) -> str:
    """Return the text on one line: any white space becomes one space, characters that cannot be encoded are removed."""
    spaced = _GAPS.sub(" ", text)
    return "".join(c for c in spaced if unicodedata.category(c) not in _REMOVED and c not in _DROPPED).strip()


def cue_text(text: str) -> str:
    """Return a translation as the text of a cue: one line without times, `-->` or markup, perhaps empty.

    Removing markup may join what was around it to new markup, so this is repeated; of markup that is nested deeper
    than any real markup, the opening brackets are removed.
    """
    found = one_line(_TIMING.sub(" ", _MARKUP.sub("", _HEADER.sub("", text))))
    for _ in range(_MAX_NESTED):
        cleaner = one_line(_ARROW.sub("→", _MARKUP.sub("", found)))
        if cleaner == found:
            return found
        found = cleaner
    return one_line(_ARROW.sub("→", found.translate(_NO_OPENING)))


# No more is sent to an endpoint after `_MAX_FAILURES` failures in a row, each of which the library has retried already,
# or after `_PATIENCE` responses for each concurrent request without one usable line: two of these are for a batch. An
# endpoint that gave translations before may be restarting, which all concurrent requests notice at once: then the two
# limits are multiplied.
_MAX_FAILURES = 3
_PATIENCE = 4
# A longer translation is a comment of the model or a loop.
_LENGTH_FREE, _LENGTH_FACTOR = 80, 6
# A translation may be longer by this factor before markup and times are removed.
_MARKUP_FACTOR = 3
# A shorter text may be the same in both languages: names, numbers, "OK".
_SAME_LETTERS = 12
# Categories of visible characters: a cue of joiners and direction marks alone would look empty.
_VISIBLE = "LNPS"
# Latin letters occur in texts of every script: names, brands, formulas. This many alone are a wrong script.
_LATIN_ALONE = 12
# Letters of a third script do not occur by chance; a single one may be a symbol.
_THIRD_ALONE = 2


class Translator:
    """Translates for many callers at once through one endpoint. `batch`: the most lines in one prompt."""

    def __init__(self, endpoint: ChatEndpoint, *, batch: int, concurrency: int) -> None:
        self._endpoint = endpoint
        self._batch = batch
        self._concurrency = concurrency

    async def translate(self, lines: Sequence[TranslatedLine], config: TranslationConfig) -> list[Translated]:
        """Return one outcome for each line, in order. Lines in the target language or without words are not sent.

        Lines without a usable translation keep their source text and have a reason. Raises `TranslationUnavailable` if
        the endpoint denies access, and `TranslationFailed` if no response was readable.
        """
        run = _Translation(lines, config, patience=_PATIENCE * self._concurrency)
        if run.wanted:
            try:
                async with asyncio.timeout(config.limit_s):
                    await self._work(run)
            except TimeoutError:
                run.give_up(f"not one line within {config.limit_s:g} s", Reason.TIME)
            run.raise_if_nothing_came()
        return run.outcomes()

    async def _work(self, run: _Translation) -> None:
        # No more workers than the endpoint's concurrency: requests of other callers then come in between. The workers
        # share one iterator, which is safe on one event loop.
        groups = iter(batches(run.texts, run.wanted, self._batch))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._concurrency):
                tasks.create_task(self._worker(run, groups))

    async def _worker(self, run: _Translation, groups: Iterable[list[int]]) -> None:
        for group in groups:
            missing = await self._attempt(run, group)
            # Once more together: most mistakes happen once. Then one by one, where no line can be confused.
            if len(missing) > 1:
                missing = await self._attempt(run, missing)
            for index in missing:
                await self._attempt(run, [index])

    async def _attempt(self, run: _Translation, asked: list[int]) -> list[int]:
        """Send one prompt for the lines `asked`; returns those that need another."""
        if run.given_up:
            return []
        prompt = build_prompt(run.texts, asked, run.language_of(asked), run.config)
        try:
            written = await self._endpoint.complete(prompt)
        except PromptRefused as refusal:
            run.refuse(asked, refusal.cause)
            # Perhaps because of one line: the others may be accepted alone.
            for index in asked if len(asked) > 1 else ():
                await self._attempt(run, [index])
            return []
        except NoResponse as failure:
            run.fail(asked, failure.cause)
            return asked
        except TranslationError as denied:
            run.deny(denied)
            return []
        given = read_response(written, prompt.ids)
        return run.take(
            {index: given[name] for index, name in zip(asked, prompt.ids, strict=True) if name in given}, asked
        )


@dataclass(slots=True)
class _Translation:
    """The state of one call of `translate`."""

    lines: Sequence[TranslatedLine]
    config: TranslationConfig
    patience: int  # responses without a usable line after which the endpoint is given up
    texts: list[str] = field(init=False)  # of the lines, as they are sent
    wanted: list[int] = field(init=False)  # indices of the lines that need a translation
    found: dict[int, str] = field(default_factory=dict)  # translations by index
    reasons: dict[int, Reason] = field(default_factory=dict)  # why a line has none, by index
    answered: bool = False  # a response had a usable line
    given_up: bool = False  # nothing more is sent
    unproductive: int = 0  # responses in a row without a usable line
    failures: int = 0  # failures in a row
    cause: str = ""  # the kind of the last failure
    denied: TranslationError | None = None  # the error with which the endpoint denied access

    def __post_init__(self) -> None:
        # Times that a line contains are removed before it is sent, and so cannot come back.
        self.texts = [cue_text(line.text) for line in self.lines]
        self.wanted = []
        for index, line in enumerate(self.lines):
            if not any(c.isalnum() for c in self.texts[index]):
                self.reasons[index] = Reason.NO_WORDS
            elif line.language and line.language.same_as(self.config.target):
                self.reasons[index] = Reason.SAME_LANGUAGE
            else:
                self.wanted.append(index)

    def language_of(self, asked: Iterable[int]) -> LanguageTag | None:
        """Return the one language of all these lines, or None."""
        languages = {self.lines[index].language for index in asked}
        return languages.pop() if len(languages) == 1 else None

    def take(self, given: dict[int, str], asked: Iterable[int]) -> list[int]:
        """Keep usable translations; returns the indices of `asked` that still have none."""
        missing: list[int] = []
        before = len(self.found)
        for index in asked:
            source, written = self.texts[index], given.get(index, "")
            # Checked before cleaning, which may take long on a text without end.
            endless = len(written) > _MARKUP_FACTOR * _longest(source)
            text = "" if endless else cue_text(written)
            reason = Reason.TOO_LONG if endless else _fault(source, text, self.config.target)
            if reason is Reason.NONE:
                self.found[index] = text
            else:
                self.reasons[index] = reason
                missing.append(index)
        self.answered |= bool(given)
        self.failures = 0
        if len(self.found) == before:
            self._note_unproductive("no usable answer")
        return missing

    def refuse(self, asked: Iterable[int], cause: str) -> None:
        """The endpoint refused the prompt for these lines."""
        self.reasons.update(dict.fromkeys(asked, Reason.REFUSED))
        self._note_unproductive(cause)

    def fail(self, asked: Iterable[int], cause: str) -> None:
        """The endpoint failed on these lines."""
        self.reasons.update(dict.fromkeys(asked, Reason.ENDPOINT))
        self.cause = cause
        self.failures += 1
        if self.failures >= _MAX_FAILURES * (self.patience if self.found else 1):
            self.give_up(cause, Reason.ENDPOINT)

    def _note_unproductive(self, cause: str) -> None:
        self.cause = cause
        self.unproductive += 1
        if self.unproductive >= self.patience and not self.found:
            self.give_up(cause, Reason.NO_ANSWER)

    def deny(self, error: TranslationError) -> None:
        """The endpoint denies access."""
        self.denied = error
        self.give_up(error.code, Reason.ENDPOINT)

    def give_up(self, cause: str, reason: Reason) -> None:
        """Send no more prompts; every line without an outcome gets this reason."""
        self.given_up = True
        self.cause = cause
        for index in self.wanted:
            self.reasons.setdefault(index, reason)

    def raise_if_nothing_came(self) -> None:
        """Raise if no response was readable. After unusable responses the lines keep their source texts instead."""
        if self.found:
            return
        if self.denied:
            raise self.denied
        if not self.answered:
            raise TranslationFailed(f"The translation endpoint translated nothing: {self.cause}.")

    def outcomes(self) -> list[Translated]:
        return [
            Translated(self.found[i], True, Reason.NONE)
            if i in self.found
            else Translated(line.text, False, self.reasons[i])
            for i, line in enumerate(self.lines)
        ]


def _longest(source: str) -> int:
    """Return the most characters that a translation of `source` may have."""
    return _LENGTH_FREE + _LENGTH_FACTOR * len(source)


def _fault(source: str, text: str, target: LanguageTag) -> Reason:
    """Return why `text` cannot be the translation of `source`; `NONE` if it can."""
    if not any(unicodedata.category(char)[0] in _VISIBLE for char in text):
        return Reason.NO_ANSWER
    if len(text) > _longest(source):
        return Reason.TOO_LONG
    if text.casefold() == source.casefold() and sum(c.isalpha() for c in source) >= _SAME_LETTERS:
        return Reason.UNCHANGED
    return Reason.OTHER_SCRIPT if wrong_script(text, target) else Reason.NONE


def wrong_script(text: str, language: LanguageTag) -> bool:
    """True if the text is clearly not in the script of the language; False if that script is not listed here."""
    own_names = LETTER_NAMES.get(language.script)
    if own_names is None:
        return False
    own = latin = third = 0
    for name in letter_names(text):
        own += name in own_names
        latin += name == "LATIN" and name not in own_names
        third += name != "LATIN" and name not in own_names
    return third > own if own else third >= _THIRD_ALONE or latin >= _LATIN_ALONE
