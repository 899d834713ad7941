"""Lines to their translations: batches, checks, second questions, and what is kept when all fails.

The law: as many lines come out as went in, in their order, each with its translation or its own source text.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asr_server.core.errors import TranslationError, TranslationFailed
from asr_server.translator import response
from asr_server.translator.batches import batches
from asr_server.translator.cleaning import cue_text
from asr_server.translator.endpoint import NoResponse, Refused
from asr_server.translator.lines import Line, Reason, Translated, TranslationOrder
from asr_server.translator.prompt import question
from asr_server.translator.scripts import foreign

if TYPE_CHECKING:
    from asr_server.text.target_languages import LanguageTag
    from asr_server.translator.endpoint import ChatEndpoint

# An endpoint is left alone after so many failures in a row, each of which the library has repeated already, or when for
# each question at a time so many answers came of which not one line was of use: two of them are for lines together.
# One that was of use before may only be starting again, which all questions at a time notice at once: it has both.
_MAX_FAILURES = 3
_PATIENCE = 4
# A translation longer than this is the model talking or going round in circles.
_LENGTH_FREE, _LENGTH_FACTOR = 80, 6
# So much longer it may be with the markup and the times that are taken out.
_MARKUP_FACTOR = 3
# Fewer letters than this may be the same in both languages: names, numbers, "OK".
_SAME_LETTERS = 12
# Categories of characters that show something: a cue of joiners and direction marks alone would be an empty one.
_SHOWN = "LNPS"


class Translator:
    """Translates many orders at once through one endpoint. `batch`: lines in one question, at most."""

    def __init__(self, endpoint: ChatEndpoint, *, batch: int, concurrency: int) -> None:
        self._endpoint = endpoint
        self._batch = batch
        self._concurrency = concurrency

    async def translate(self, lines: Sequence[Line], order: TranslationOrder) -> list[Translated]:
        """One outcome for each line, in order. Lines that are in the target language or without words are not sent.

        Lines without a usable translation keep their source text and say why. Raises `TranslationUnavailable` when the
        endpoint does not let us in, and `TranslationFailed` when it answered for no line at all.
        """
        run = _Run(lines, order, patience=_PATIENCE * self._concurrency)
        if run.wanted:
            try:
                async with asyncio.timeout(order.limit_s):
                    await self._work(run)
            except TimeoutError:
                run.give_up(f"not one line within {order.limit_s:g} s", Reason.TIME)
            run.raise_if_nothing_came()
        return run.outcomes()

    async def _work(self, run: _Run) -> None:
        # An order asks for no more at a time than the endpoint answers, so that others get their turn between.
        groups = iter(batches(run.texts, run.wanted, self._batch))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._concurrency):
                tasks.create_task(self._worker(run, groups))

    async def _worker(self, run: _Run, groups: Iterable[list[int]]) -> None:
        for group in groups:
            left = await self._attempt(run, group)
            # Once more together: most mistakes are made once. Then alone, where no line can be taken for another.
            if len(left) > 1:
                left = await self._attempt(run, left)
            for index in left:
                await self._attempt(run, [index])

    async def _attempt(self, run: _Run, asked: list[int]) -> list[int]:
        """Ask for the lines; the ones that must be asked for again."""
        if run.given_up:
            return []
        put = question(run.texts, asked, run.tongue_of(asked), run.order)
        try:
            written = await self._endpoint.ask(put)
        except Refused as refusal:
            run.refuse(asked, refusal.cause)
            # Perhaps for one line only: the others may be answered alone.
            for index in asked if len(asked) > 1 else ():
                await self._attempt(run, [index])
            return []
        except NoResponse as failure:
            run.fail(asked, failure.cause)
            return asked
        except TranslationError as closed:
            run.close(closed)
            return []
        given = response.read(written, put.ids)
        return run.take(
            {index: given[name] for index, name in zip(asked, put.ids, strict=True) if name in given}, asked
        )


@dataclass(slots=True)
class _Run:
    """One order under way: what was found, and why what was not found was not."""

    lines: Sequence[Line]
    order: TranslationOrder
    patience: int
    texts: list[str] = field(init=False)
    wanted: list[int] = field(init=False)
    found: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, Reason] = field(default_factory=dict)
    answered: bool = False
    given_up: bool = False
    fruitless: int = 0
    failures: int = 0
    cause: str = ""
    closed: TranslationError | None = None

    def __post_init__(self) -> None:
        # A line that looks like a cue's head is sent without it: times never go out, and so cannot come back.
        self.texts = [cue_text(line.text) for line in self.lines]
        self.wanted = []
        for index, line in enumerate(self.lines):
            if not any(c.isalnum() for c in self.texts[index]):
                self.reasons[index] = Reason.NO_WORDS
            elif line.tongue and line.tongue.same_as(self.order.target):
                self.reasons[index] = Reason.SAME_LANGUAGE
            else:
                self.wanted.append(index)

    def tongue_of(self, asked: Iterable[int]) -> LanguageTag | None:
        """The one language of all these lines, or None."""
        tongues = {self.lines[index].tongue for index in asked}
        return tongues.pop() if len(tongues) == 1 else None

    def take(self, given: dict[int, str], asked: Iterable[int]) -> list[int]:
        """Keep what is a translation; the indices of `asked` that still have none."""
        left: list[int] = []
        before = len(self.found)
        for index in asked:
            source, written = self.texts[index], given.get(index, "")
            # Before it is cleaned, which may take long for what goes on without end.
            endless = len(written) > _MARKUP_FACTOR * _longest(source)
            text = "" if endless else cue_text(written)
            reason = Reason.TOO_LONG if endless else _fault(source, text, self.order.target)
            if reason is Reason.NONE:
                self.found[index] = text
            else:
                self.reasons[index] = reason
                left.append(index)
        self.answered |= bool(given)
        self.failures = 0
        if len(self.found) == before:
            self._note_fruitless("no usable answer")
        return left

    def refuse(self, asked: Iterable[int], cause: str) -> None:
        """The endpoint will not answer for these lines."""
        self.reasons.update(dict.fromkeys(asked, Reason.REFUSED))
        self._note_fruitless(cause)

    def fail(self, asked: Iterable[int], cause: str) -> None:
        """The endpoint failed on these lines."""
        self.reasons.update(dict.fromkeys(asked, Reason.ENDPOINT))
        self.cause = cause
        self.failures += 1
        if self.failures >= _MAX_FAILURES * (self.patience if self.found else 1):
            self.give_up(cause, Reason.ENDPOINT)

    def _note_fruitless(self, cause: str) -> None:
        self.cause = cause
        self.fruitless += 1
        if self.fruitless >= self.patience and not self.found:
            self.give_up(cause, Reason.NO_ANSWER)

    def close(self, error: TranslationError) -> None:
        """The endpoint will not let us in for any line."""
        self.closed = error
        self.give_up(error.code, Reason.ENDPOINT)

    def give_up(self, cause: str, reason: Reason) -> None:
        """Ask no more; every line without an outcome gets this reason."""
        self.given_up = True
        self.cause = cause
        for index in self.wanted:
            self.reasons.setdefault(index, reason)

    def raise_if_nothing_came(self) -> None:
        """A request without one answer has failed; with answers that were no use, its lines are kept and say so."""
        if self.found:
            return
        if self.closed:
            raise self.closed
        if not self.answered:
            raise TranslationFailed(f"The translation endpoint translated nothing: {self.cause}.")

    def outcomes(self) -> list[Translated]:
        """One for each line."""
        return [
            Translated(self.found[i], True, Reason.NONE)
            if i in self.found
            else Translated(line.text, False, self.reasons[i])
            for i, line in enumerate(self.lines)
        ]


def _longest(source: str) -> int:
    """Characters that a translation of `source` has at most."""
    return _LENGTH_FREE + _LENGTH_FACTOR * len(source)


def _fault(source: str, text: str, target: LanguageTag) -> Reason:
    """Why `text` cannot be the translation of `source`; `NONE` when it can."""
    if not any(unicodedata.category(char)[0] in _SHOWN for char in text):
        return Reason.NO_ANSWER
    if len(text) > _longest(source):
        return Reason.TOO_LONG
    if text.casefold() == source.casefold() and sum(c.isalpha() for c in source) >= _SAME_LETTERS:
        return Reason.UNCHANGED
    return Reason.OTHER_SCRIPT if foreign(text, target) else Reason.NONE
