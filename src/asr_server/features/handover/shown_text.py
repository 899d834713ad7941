"""What the client of a session has been shown, where one session goes on in another: no committed word is taken back,
and none is shown twice. Pure.

Another session may put a cut elsewhere, or word an open utterance otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from asr_server.text.stable_merge import continued, without_beginning


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
    """The text of the open utterance. `end_s`: the end of the audio that it was made from."""

    utterance: int
    committed: str
    end_s: float


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

    def reset(self) -> None:
        """The open utterance was discarded."""
        self._shown, self._carried_over = None, (0, "")

    def _consistent(self, utterance: int, text: str, committed: str) -> tuple[Consistent, str]:
        """And the shown words that the text does not reach."""
        if self._carried_over[0] == utterance and self._carried_over[1]:
            text = without_beginning(self._carried_over[1], text)
            committed = without_beginning(self._carried_over[1], committed)
        shown = self._shown.committed if self._shown is not None and self._shown.utterance == utterance else ""
        merged = continued(shown, text)
        if not (committed.startswith(shown) and merged.text.startswith(committed)):
            committed = shown
        return Consistent(merged.text, committed), merged.beyond
