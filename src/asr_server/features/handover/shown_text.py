"""The text that the client of a session has been shown, where one session goes on in another. Pure.

No committed word is taken back, none is shown twice, and the labels of speakers stay.

Another session may put a cut elsewhere, or word an open utterance otherwise. It knows no voice of the session: its own
letters begin after those that were shown, so that a letter never means two people.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.text.stable_merge import continued, without_beginning

Runs = list[dict[str, str | None]]  # {"speaker", "text"}, in order

_UTTERANCES_KEPT = 256
_LETTERS = re.compile("[A-Z]{1,3}")  # as `speakers.turns.label` has them


@dataclass(frozen=True, slots=True)
class Consistent:
    """A text that agrees with what was shown."""

    text: str
    committed: str

    @property
    def tentative(self) -> str:
        """The text behind the committed words."""
        return self.text[len(self.committed) :]


@dataclass(frozen=True, slots=True)
class _Shown:
    """The text of the open utterance."""

    utterance: int
    committed: str
    end_s: float  # of the audio that it was made from


class ShownText:
    """The texts of one client, by its utterance numbers and times. All of them pass through here, in order."""

    def __init__(self) -> None:
        self._shown: _Shown | None = None
        # Words that were shown in the utterance before and were not in its final, with the number of the utterance at
        # whose beginning they may come again.
        self._carried_over: tuple[int, str] = (0, "")

    def carried_over(self, utterance: int) -> str:
        """Words that were shown before this utterance, and that the final before it does not reach."""
        return self._carried_over[1] if self._carried_over[0] == utterance else ""

    def begin(self, utterance: int, committed: str, end_s: float) -> None:
        """The client was shown this of the open utterance."""
        self._shown = _Shown(utterance, committed, end_s)

    def carry_over(self, utterance: int, words: str) -> None:
        """The client was shown these words before this utterance."""
        self._carried_over = (utterance, words)

    def on_partial(self, utterance: int, text: str, committed: str, end_s: float) -> Consistent | None:
        """Return the text for the client, or None if it was made from less audio than the client has seen."""
        shown = self._shown
        if shown is not None and (utterance, end_s) < (shown.utterance, shown.end_s):
            return None
        found, _ = self._consistent(utterance, text, committed)
        self._shown = _Shown(utterance, found.committed, end_s)
        return found

    def on_final(self, utterance: int, text: str) -> str:
        """The final text that the client gets."""
        found, not_in_final = self._consistent(utterance, text, text)
        self._shown, self._carried_over = None, (utterance + 1, not_in_final)
        return found.text

    def reset(self, utterance: int | None) -> None:
        """This open utterance was discarded, or none if no other was open. A client that has been shown of a later one
        has sent the reset before, and it is repeated."""
        self._carried_over = (0, "")
        if self._shown is not None and self._shown.utterance <= (utterance or 0):
            self._shown = None

    def _consistent(self, utterance: int, text: str, committed: str) -> tuple[Consistent, str]:
        """Return the text as it follows what was shown, and the shown words that it does not reach."""
        if self._carried_over[0] == utterance and self._carried_over[1]:
            text = without_beginning(self._carried_over[1], text)
            committed = without_beginning(self._carried_over[1], committed)
        shown = self._shown.committed if self._shown is not None and self._shown.utterance == utterance else ""
        merged = continued(shown, text)
        if not (committed.startswith(shown) and merged.text.startswith(committed)):
            committed = shown
        return Consistent(merged.text, committed), merged.beyond


class ShownSpeakers:
    """The labels of one session, by its numbers of utterances.

    `first_unused`: the first speaker that the client has not seen.
    """

    def __init__(self) -> None:
        self.first_unused = 0
        self._first = 0  # of the speakers of the present server or worker
        self._shown: OrderedDict[int, Runs] = OrderedDict()
        self._by_others: dict[int, Runs] = {}  # the beginnings of texts that earlier ones have labelled

    def on_text(self, utterance: int, committed: str, runs: Runs) -> Runs:
        """Return the runs of the committed text for the client. `runs`: of the present worker's own text."""
        self._see(runs)
        kept = self._by_others.get(utterance, [])
        found = runs if not kept and _text(runs) == committed else _joined(kept, runs, committed)
        self._shown[utterance] = found
        if len(self._shown) > _UTTERANCES_KEPT:
            self._shown.popitem(last=False)
        return found

    def on_update(self, utterance: int, runs: Runs) -> Runs | None:
        """Return the new runs of a text that was shown, or None for one that was not."""
        shown = self._shown.get(utterance)
        return None if shown is None else self.on_text(utterance, _text(shown), runs)

    def begin(self, utterance: int, runs: Runs, first_unused: int) -> None:
        """Begin with the runs of the open utterance and the letters that earlier servers have shown."""
        self._shown[utterance] = runs
        self.first_unused = max(self.first_unused, first_unused)
        self._see(runs)
        self.restarted()

    def restarted(self) -> None:
        """Note that another server or worker takes over."""
        self._by_others = dict(self._shown)
        self._first = self.first_unused

    def _see(self, runs: Runs) -> None:
        for run in runs:
            if run["speaker"] and _LETTERS.fullmatch(run["speaker"]):
                number = reduce(lambda value, letter: 26 * value + ord(letter) - ord("A") + 1, run["speaker"], 0)
                if number <= self._first + MAX_SPEAKERS:  # otherwise it is the name of a stored voice
                    self.first_unused = max(self.first_unused, number)


def _text(runs: Iterable[dict[str, str | None]]) -> str:
    return "".join(run["text"] or "" for run in runs)


def _joined(kept: Runs, runs: Runs, committed: str) -> Runs:
    """Return the kept runs and after them the last of the others, which are the rest of the committed text."""
    rest = committed.removeprefix(_text(kept))
    if rest == committed:
        kept = []
    found = [*kept]
    tail = _last(runs, len(rest)) if _text(runs).endswith(rest) else [{"speaker": None, "text": rest}]
    for run in tail:
        if found and found[-1]["speaker"] == run["speaker"]:
            found[-1] = {"speaker": run["speaker"], "text": (found[-1]["text"] or "") + (run["text"] or "")}
        elif run["text"]:
            found.append(run)
    return found


def _last(runs: Runs, chars: int) -> Runs:
    """Return the runs of the last `chars` characters."""
    skipped, found = len(_text(runs)) - chars, []
    for run in runs:
        text = (run["text"] or "")[skipped:]
        skipped = max(0, skipped - len(run["text"] or ""))
        if text:
            found.append({"speaker": run["speaker"], "text": text})
    return found
