"""A text that arrives in pieces, as the sentences that are to be spoken. Pure: no engine, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asr_server.text.sentences import SentenceStream


@dataclass(frozen=True, slots=True)
class ArrivedSentence:
    """A sentence as it is in the text."""

    text: str
    language: str  # of the whole text


class ArrivingText:
    """The sentences of one text after the other, each as soon as its end is certain.

    A text in any pieces has the sentences that it has as a whole. Its language is `language`; if that is None,
    `language_of` decides by the first sentence, which is found by the rules of `default`.
    """

    def __init__(self, language: str | None, default: str, language_of: Callable[[str], str]) -> None:
        self._stated, self._default, self._language_of = language, default, language_of
        self.clear()

    @property
    def waiting_characters(self) -> int:
        """The number of characters that have arrived and whose sentence is not certain yet."""
        return self._sentences.waiting_characters if self._language is not None else len(self._undecided)

    def clear(self) -> None:
        """Forget what has arrived: the next piece begins another text."""
        self._language = self._stated
        self._sentences = SentenceStream(self._stated or self._default)
        self._undecided = ""  # the whole text, while its language is not known

    def push(self, piece: str) -> list[ArrivedSentence]:
        """Add a piece and return the sentences that are certain now.

        Raises what `language_of` raises; the text is forgotten then.
        """
        if self._language is not None:
            return self._in_language(self._sentences.push(piece))
        self._undecided += piece
        return self._decided(self._sentences.push(piece))

    def end(self) -> list[ArrivedSentence]:
        """End the text and return its last sentences. The next piece begins another text. Raises as `push`."""
        found = [] if self._language is not None else self._decided(self._sentences.flush())
        if self._language is not None:
            found += self._in_language(self._sentences.flush())
        self.clear()
        return found

    def _decided(self, provisional: list[str]) -> list[ArrivedSentence]:
        """Return the sentences so far by the rules of the text's language, once its first sentence is known."""
        if not provisional:
            return []
        try:
            self._language = self._language_of(provisional[0])
        except BaseException:
            self.clear()
            raise
        self._sentences = SentenceStream(self._language)
        return self._in_language(self._sentences.push(self._undecided))

    def _in_language(self, found: list[str]) -> list[ArrivedSentence]:
        assert self._language is not None
        return [ArrivedSentence(text, self._language) for text in found]
