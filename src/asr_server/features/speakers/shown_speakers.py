"""The labels that the client of a live session has been shown, over any number of servers or workers. Pure.

The next server or worker knows no voice of the session. Labels that were shown stay, and its own letters begin after
them, so that a letter never means two people.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from functools import reduce

from asr_server.core.transcript import MAX_SPEAKERS

Runs = list[dict[str, str | None]]  # {"speaker", "text"}, in order

_UTTERANCES_KEPT = 256
_LETTERS = re.compile("[A-Z]{1,3}")  # as `speakers.turns.label` has them


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
