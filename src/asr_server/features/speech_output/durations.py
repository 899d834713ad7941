"""About how long a text will be when it is spoken, for admission and the order of work."""

from __future__ import annotations

from asr_server.text.scripts import is_unspaced

# Of eSpeak NG at its usual rate; people read books at about the same.
_LETTERS_PER_S, _SYLLABLES_PER_S = 14.0, 4.5


def spoken_s(text: str) -> float:
    """Seconds. Characters of scripts without blanks are about a syllable each."""
    syllables = sum(map(is_unspaced, text))
    return (len(text) - syllables) / _LETTERS_PER_S + syllables / _SYLLABLES_PER_S
