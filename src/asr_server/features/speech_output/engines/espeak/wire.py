"""Requests to the process of eSpeak NG, which are `messages`, and their answers.

An answer is messages with data alone, and at last one that says `spoken`: true if the sentence was spoken to its end.
The data are samples of 16 bits at `RATE`, or together a JSON array of clauses for a request of phonemes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

RATE = 22_050  # Hz, of all voices of the library
MAX_REQUEST_BYTES = 64 * 1024
MAX_DATA_BYTES = 64 * 1024  # of one message
MAX_MESSAGE_BYTES = MAX_DATA_BYTES + 64
MAX_ANSWER_BYTES = 1024 * 1024  # phonemes of a sentence; of 400 digits that are spelled out, some 30 KiB


@dataclass(frozen=True, slots=True)
class SpeakRequest:
    """A text to speak, or to write in phonemes."""

    text: str
    voice: str  # the library's name: a language, or a language and a variant
    phonemes: bool = False  # write it instead of speaking it


class Clause(NamedTuple):
    """A part of a text in phonemes."""

    phonemes: str  # of the International Phonetic Alphabet
    ending: str  # the sign that ends it, or ""
