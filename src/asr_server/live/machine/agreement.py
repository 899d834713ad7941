"""Commits the words of an open utterance on which successive hypotheses agree (local agreement).

A word is committed when it is not among the last words of the text, and when it and all words before it have been in
every hypothesis for a while, and in at least two. Words are compared without case and punctuation, since a model
settles on these later than on the words. The spelling of the current hypothesis is committed. Committed ids are the
forced prefix of every later hypothesis, so they are never taken back.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from bisect import bisect_left
from dataclasses import dataclass

from asr_server.live.machine.events import TranscribeResult
from asr_server.text import scripts

# A word is a run without spaces, or one character of a script that is written without them.
_WORD = re.compile(rf"[{scripts.LETTERS}]|[^\s{scripts.LETTERS}]+")
_UNSPACED = re.compile(f"[{scripts.LETTERS}]")
_BROKEN = "\ufffd"  # an unfinished character of a byte-level token


@dataclass(frozen=True, slots=True)
class CommitRules:
    """The conditions under which a word is committed."""

    held_words: int = 2  # this many words at the end stay open
    held_characters: int = 4  # the same for scripts without spaces, where each character counts
    age_samples: int = 6_400  # a word must have stood for this much speech
    guess_age_samples: int = 48_000  # the same for a word with a token that is less probable than `least_probability`
    least_probability: float = 0.8  # a token that is less probable is a guess
    # a word that first appears in a hypothesis on more audio of the utterance is not committed
    latest_samples: float = math.inf


@dataclass(frozen=True, slots=True)
class _Word:
    """One word with the punctuation after it: text[start:end]."""

    start: int
    end: int
    folded: str  # without case and punctuation


class _Standing:
    """The age of each word of the last hypothesis in its place."""

    def __init__(self) -> None:
        self._words: list[str] = []  # folded
        self.since: list[float] = []  # for each word: the speech in the audio of the hypothesis that first had it

    def follow(self, folded: list[str], speech_samples: float) -> None:
        agreed = _agreed(self._words, folded)
        self.since = self.since[:agreed] + [speech_samples] * (len(folded) - agreed)
        self._words = folded


class Agreement:
    """The hypotheses of one utterance, and the words of them that are committed."""

    def __init__(self, rules: CommitRules) -> None:
        self._rules = rules
        # In all hypotheses, and in those that may commit words. The greater of the two ages counts: if a less accurate
        # engine keeps hearing another word, the accurate one may still agree with itself.
        self._shown, self._confirmed = _Standing(), _Standing()
        self.ids: tuple[int, ...] = ()
        self.text = ""
        self.committed_ids: tuple[int, ...] = ()
        self.committed = ""

    def on_result(
        self, result: TranscribeResult, end_samples: int, speech_samples: int, *, may_commit: bool = True
    ) -> None:
        """Add the next hypothesis, made from the audio up to `end_samples`. Of this audio, `speech_samples` are speech:
        words do not age in pauses. `may_commit`: whether its words may be committed. The hypotheses of a less accurate
        engine only show for how long a word has stood."""
        words = _words(result.text)
        folded = [word.folded for word in words]
        since = math.inf if end_samples > self._rules.latest_samples else speech_samples
        self._shown.follow(folded, since)
        if may_commit:
            self._confirmed.follow(folded, since)
        self.ids = result.ids
        self.text = following(self.committed, result)
        if may_commit and result.offsets and result.text == self.text:
            self._commit(result, words, speech_samples)

    def _commit(self, result: TranscribeResult, words: list[_Word], speech_samples: int) -> None:
        """Commit the certain words, up to the last of them that ends where a token ends."""
        for word in reversed(words[: self._certain(result, words, speech_samples)]):
            count = bisect_left(result.offsets, word.end) + 1
            offset = result.offsets[count - 1]
            if offset <= len(self.committed):
                return
            # Never up to a number, which may still change with the next digits: "20", then "20,000".
            if _word_ends(result.text, offset) and not word.folded.isnumeric():
                self.committed_ids, self.committed = result.ids[:count], result.text[:offset]
                return

    def _certain(self, result: TranscribeResult, words: list[_Word], speech_samples: int) -> int:
        """Count the leading words that are committed, or old enough for their probability. Held words never count."""
        held = self._rules.held_words
        if words and _UNSPACED.match(words[-1].folded):
            held = self._rules.held_characters
        stood_since = map(min, self._shown.since, self._confirmed.since)
        for number, (word, since) in enumerate(zip(words[: max(0, len(words) - held)], stood_since, strict=False)):
            if word.end <= len(self.committed):
                continue
            guess = self._is_guess(result, word)
            wanted_samples = max(1, self._rules.guess_age_samples if guess else self._rules.age_samples)
            if speech_samples - since < wanted_samples:
                return number
        return max(0, len(words) - held)

    def _is_guess(self, result: TranscribeResult, word: _Word) -> bool:
        floor = math.log(self._rules.least_probability)
        tokens = range(bisect_left(result.offsets, word.start + 1), bisect_left(result.offsets, word.end) + 1)
        return any(
            result.logprobs[n] < floor and _folded(result.text[result.offsets[n - 1] if n else 0 : result.offsets[n]])
            for n in tokens
            if n < len(result.logprobs)
        )


def following(committed: str, result: TranscribeResult) -> str:
    """Return the whole text of a hypothesis, changed where necessary so that it begins with `committed`.

    The ids begin with the committed ids, but the text lacks some of their words if a repetition was folded. The text of
    a detached result may have other words in their place.
    """
    text = result.text
    if result.detached:
        return scripts.continued(committed, text)
    if text.startswith(committed):
        return text
    shared = 0
    while shared < min(len(committed), len(text)) and committed[shared] == text[shared]:
        shared += 1
    while shared and text[shared - 1].isspace():
        shared -= 1  # the space belongs to the word that follows
    return committed + text[shared:]


def _words(text: str) -> list[_Word]:
    """The words of a text; a run of punctuation belongs to the word before it."""
    found: list[_Word] = []
    for match in _WORD.finditer(text):
        folded = _folded(match.group())
        if folded:
            found.append(_Word(match.start(), match.end(), folded))
        elif found:
            found[-1] = _Word(found[-1].start, match.end(), found[-1].folded)
    return found


@functools.lru_cache(4_096)  # each hypothesis has most of the words of the one before
def _folded(text: str) -> str:
    return "".join(char for char in text.casefold() if unicodedata.category(char)[0] in "LMN")


def _agreed(before: list[str], now: list[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))


def _word_ends(text: str, offset: int) -> bool:
    """Return True if no word continues across `offset`."""
    before, after = text[:offset], text[offset:]
    if before.endswith(_BROKEN) or not before.strip():
        return False
    if not after or after[0].isspace() or before[-1].isspace():
        return True
    return bool(_UNSPACED.match(after) or _UNSPACED.match(before[-1])) and after[0].isalnum()
