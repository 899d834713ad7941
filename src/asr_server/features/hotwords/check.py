"""Repeats without the context the answers that may come only from it. Marks the words that the context decided.

If nobody speaks, models write down their prompt or hotwords, in part or in whole. Such an answer is mostly terms of the
context, but so is the answer for a speaker who says only such terms. Only the sound distinguishes the two: compared
with the answer without the context, words that were said are a little less likely, and invented words far less.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING

from asr_server.engine.protocol import Finish
from asr_server.processes.caller_work import in_thread
from asr_server.recordings.span import ROW_FAILURES, CheckedAnswer, ContextCheck
from asr_server.server_feature import ServerFeature
from asr_server.services import FeatureParts
from asr_server.text import words
from asr_server.text.scripts import key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asr_server.engine.client import Transcription
    from asr_server.engine.protocol import Hypothesis, Utterance
    from asr_server.recordings.span import Ask

# The terms of this many contexts are kept. Those of the longest context take 12 to 27 ms to find, and 3 MB.
_KEPT = 16
_SHORT = 1_000  # characters; contexts up to this length are searched on the event loop
# How much less likely than the answer without the context the answer may be, if both are scored without the context: in
# natural logarithms per token. Decoders that search for hotwords usually add this much for each token of one.
_MOST_BONUS = 1.5
# Separators of terms. A dot separates only at the end of a word, since it is part of names such as "node.js".
_SEPARATOR = re.compile(r"[,;、。，；！？\n]|[.!?…](?:\s|$)")


class Terms:
    """The terms of one context: the texts between commas, line breaks and ends of sentences."""

    def __init__(self, context: str) -> None:
        self._terms = {_keys(words.split(part)) for part in _SEPARATOR.split(context)} - {()}
        self._lengths = sorted(set(map(len, self._terms)))  # of all terms, in words
        self._sorted = sorted(map(" ".join, self._terms))

    def found(self, written: Sequence[str], *, is_open: bool = False) -> set[int]:
        """Return the numbers of the words that belong to a term. `written`: the words, as `words.split` makes them.

        `is_open`: the words are the beginning of a text, which may end within a term or within one of its words.
        """
        keys, found = _keys(written), set[int]()
        for length in takewhile(lambda length: length <= len(keys), self._lengths):
            for place in range(len(keys) - length + 1):
                if keys[place : place + length] in self._terms:
                    found.update(range(place, place + length))
        for place in range(len(keys)) if is_open else ():
            rest = " ".join(keys[place:])
            at = bisect_left(self._sorted, rest)
            if self._sorted[at : at + 1] and self._sorted[at].startswith(rest):
                found.update(range(place, len(keys)))
                break
        return found


def _keys(written: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(key, written))


class HotwordCheck(ContextCheck):
    """Checks the answers of every engine. It is used on the event loop."""

    def __init__(self) -> None:
        self._terms = lru_cache(_KEPT)(Terms)

    async def is_doubtful(self, context: str, text: str) -> bool:
        """Return True if most words of the text are terms of the context."""
        found, count = await self._found(context, text, is_open=True)
        return 2 * len(found) > count

    async def _found(self, context: str, text: str, *, is_open: bool = False) -> tuple[set[int], int]:
        """Return the numbers of the words of the text that belong to terms, and how many words the text has."""
        if not context:
            return set(), 0

        def search() -> tuple[set[int], int]:
            written = words.split(text)
            return self._terms(context).found(written, is_open=is_open), len(written)

        return search() if len(context) <= _SHORT else await in_thread(search)

    async def checked(
        self, utterance: Utterance, answer: Transcription, ask: Ask, *, is_sent: bool = False, marks: bool = False
    ) -> CheckedAnswer:
        """Return the answer, or one without the context if most words are terms and the sound does not support them.

        The check transcribes the audio again. It takes one pass if the text is the same without the context, otherwise
        two passes and the steps of another answer. With `marks`, every answer with a term is checked.
        """
        context, hypothesis = utterance.context, answer.hypothesis
        is_doubtful = not is_sent and await self.is_doubtful(context, hypothesis.text)
        listed, _ = await self._found(context, hypothesis.text) if is_doubtful or marks else (set[int](), 0)
        if not listed:
            return CheckedAnswer(answer)
        without = replace(
            utterance,
            context="",
            temperature=0.0,
            draft=hypothesis.ids,
            draft_text=None,
            session=None,  # the work kept for a session is for its context
            stream=False,
        )
        try:
            second = await ask(without)
            plain = second.hypothesis
            if plain.finish is not Finish.END or plain.text == hypothesis.text:
                return CheckedAnswer(answer)
            is_supported = not is_doubtful or await _is_supported(hypothesis, plain, without, ask)
        except ROW_FAILURES:
            return CheckedAnswer(answer)
        if not is_supported:
            return CheckedAnswer(replace(second, start=answer.start, end=answer.end), is_replaced=True)
        return CheckedAnswer(answer, biased=_changed(plain.text, hypothesis.text).intersection(listed))


async def _is_supported(hypothesis: Hypothesis, plain: Hypothesis, without: Utterance, ask: Ask) -> bool:
    """Return True if the answer is nearly as likely as `plain`, the answer without context, given only the sound."""
    if not hypothesis.logprobs:  # the engine has no scores
        return bool(plain.text)
    ids = hypothesis.ids
    forced = await ask(replace(without, prefix=ids, prefix_text=None))
    support = sum(forced.hypothesis.logprobs[: len(ids)]) / len(ids)
    return support >= plain.mean_logprob - _MOST_BONUS


def _changed(plain: str, text: str) -> frozenset[int]:
    """Return the numbers of the words of `text` where `plain` has other words or none."""
    ours, theirs = ([key(word) for word in words.split(one)] for one in (plain, text))
    changes = SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    return frozenset(n for tag, _, _, start, end in changes if tag != "equal" for n in range(start, end))


SERVER = ServerFeature(build=lambda core: FeatureParts(context_check=HotwordCheck()))
