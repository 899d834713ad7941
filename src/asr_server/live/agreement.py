"""Which words of an open utterance are committed: those on which successive hypotheses agree (local agreement).

A token is committed when it and all tokens before it have stood in every hypothesis for a while, and in at least two;
when a word ends there; and when it is not among the last words of the text. Committed ids are the forced prefix of
every later hypothesis, so they are never taken back.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from asr_server.live.events import TranscribeResult
from asr_server.text import scripts
from asr_server.text.stable_merge import continued

# A word is a run without spaces, or one character of a script that is written without them.
_WORD = re.compile(rf"[{scripts.LETTERS}]|[^\s{scripts.LETTERS}]+")
_UNSPACED = re.compile(f"[{scripts.LETTERS}]")
_BROKEN = "\ufffd"  # an unfinished character of a byte-level token


@dataclass(frozen=True, slots=True)
class CommitRules:
    """When a token is committed.

    `held_words`: so many words at the end stay open. `age_samples`: of audio for which a token must have stood.
    `guess_age_samples`: the same for a token whose probability is below `least_probability`. `latest_samples`: what
    first stood in a hypothesis made from more audio of the utterance is not committed.
    """

    held_words: int = 2
    age_samples: int = 12_800
    guess_age_samples: int = 32_000
    least_probability: float = 0.8
    latest_samples: float = math.inf


class Agreement:
    """The hypotheses of one utterance, and what is committed of them."""

    def __init__(self, rules: CommitRules) -> None:
        self._rules = rules
        self._since: list[int] = []  # for each id of the last hypothesis: the audio end at which it first stood there
        self.ids: tuple[int, ...] = ()
        self.text = ""
        self.committed_ids: tuple[int, ...] = ()
        self.committed = ""

    @property
    def tentative(self) -> str:
        """The text after the committed words."""
        return self.text[len(self.committed) :]

    def on_result(self, result: TranscribeResult, end_samples: int) -> None:
        """The next hypothesis, made from the audio up to `end_samples`."""
        agreed = _agreed(self.ids, result.ids)
        self._since = self._since[:agreed] + [end_samples] * (len(result.ids) - agreed)
        self.ids = result.ids
        self.text = following(self.committed, result)
        if result.offsets and result.text == self.text:
            self._commit(result, self._certain(result, end_samples))

    def _certain(self, result: TranscribeResult, end_samples: int) -> int:
        """How many ids, from the first, are old and probable enough."""
        floor = math.log(self._rules.least_probability)
        count = len(self.committed_ids)
        for since in self._since[count:]:
            guess = bool(result.logprobs) and result.logprobs[count] < floor
            wanted_samples = max(1, self._rules.guess_age_samples if guess else self._rules.age_samples)
            if end_samples - since < wanted_samples or since > self._rules.latest_samples:
                break
            count += 1
        return count

    def _commit(self, result: TranscribeResult, certain: int) -> None:
        """Commit as many whole words as lie within `certain` ids and before the held words."""
        words = [match.start() for match in _WORD.finditer(result.text)]
        if len(words) <= self._rules.held_words:
            return
        limit = words[-self._rules.held_words] if self._rules.held_words else len(result.text)
        for count in range(certain, len(self.committed_ids), -1):
            offset = result.offsets[count - 1]
            if len(self.committed) < offset <= limit and _word_ends(result.text, offset):
                self.committed_ids, self.committed = result.ids[:count], result.text[:offset]
                return


def following(committed: str, result: TranscribeResult) -> str:
    """The text of a hypothesis behind the committed words: the whole text, which begins with `committed`.

    The ids begin with the committed ones, but a text in which a repetition was folded may lack some of the words. A
    detached one may have other words in their place.
    """
    text = result.text
    if result.detached:
        return continued(committed, text).text
    if text.startswith(committed):
        return text
    shared = 0
    while shared < min(len(committed), len(text)) and committed[shared] == text[shared]:
        shared += 1
    while shared and text[shared - 1].isspace():
        shared -= 1  # the space belongs to the word that follows
    return committed + text[shared:]


def _agreed(before: tuple[int, ...], now: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))


def _word_ends(text: str, offset: int) -> bool:
    """Whether no word goes on over `offset`."""
    before, after = text[:offset], text[offset:]
    if before.endswith(_BROKEN) or not before.strip():
        return False
    if not after or after[0].isspace() or before[-1].isspace():
        return True
    return bool(_UNSPACED.match(after) or _UNSPACED.match(before[-1])) and after[0].isalnum()
