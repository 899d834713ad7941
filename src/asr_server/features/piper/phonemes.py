"""Clauses in phonemes as utterances that a voice speaks in one go."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable

from asr_server.engine.speech.espeak.wire import Clause
from asr_server.features.piper.voice import END, PAD, START

# Some 15 s of speech. The work grows with the square of it, and nothing else of the server's speech runs meanwhile.
MAX_PHONEMES = 200
# eSpeak NG's marks of a change of language, such as "(en)".
_LANGUAGE_MARK = re.compile(r"\([a-z-]{2,12}\)")


def utterances(clauses: Iterable[Clause], known: Collection[str]) -> list[list[str]]:
    """Return the phonemes that a voice knows, of whole clauses where these are short enough.

    Utterances with no phoneme but signs of punctuation are left out.
    """
    found: list[list[str]] = [[]]
    for clause in clauses:
        signs = unicodedata.normalize("NFD", _LANGUAGE_MARK.sub("", clause.phonemes).strip() + clause.ending)
        phonemes = [sign for sign in signs if sign in known and sign not in (START, END, PAD)]
        for piece in _pieces(phonemes):
            if found[-1] and len(found[-1]) + 1 + len(piece) > MAX_PHONEMES:
                found.append([])
            found[-1] += [" ", *piece] if found[-1] else piece
    return [one for one in found if any(unicodedata.category(sign).startswith("L") for sign in one)]


def _pieces(phonemes: list[str]) -> Iterable[list[str]]:
    """Cut a clause that is too long, between two words where it has several."""
    while len(phonemes) > MAX_PHONEMES:
        spaces = [place for place in range(1, MAX_PHONEMES) if phonemes[place] == " "]
        cut = spaces[-1] if spaces else MAX_PHONEMES
        yield phonemes[:cut]
        phonemes = phonemes[cut:]
    yield phonemes
