"""Estimates the duration of a text when it is spoken, for admission and the order of work."""

from __future__ import annotations

from asr_server.text.scripts import is_unspaced

# Of eSpeak NG at its usual rate; people read books at about the same.
_LETTERS_PER_S, _SYLLABLES_PER_S = 14.0, 4.5


def spoken_s(text: str) -> float:
    """Return about how many seconds the text takes. A character of a script without blanks is about a syllable."""
    syllables = sum(map(is_unspaced, text))
    return (len(text) - syllables) / _LETTERS_PER_S + syllables / _SYLLABLES_PER_S
