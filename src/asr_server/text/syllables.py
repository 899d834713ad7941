"""Estimates how long a written word takes to say, in syllables, from its script only.

The unit is the syllable because its rate is what languages have in common: 5.2 to 7.8 a second in seven languages
(Pellegrino, Coupé and Marsico, "A cross-language perspective on speech information rate", Language 87, 2011). The
weight of a character follows from what it writes:

| characters | syllables | reason |
| --- | --- | --- |
| Hangul, kana, Han | 1 | each writes a syllable (a mora); in Japanese a Han character is read as one or two: 1.5 |
| letters of Indic scripts | 1 | a consonant letter carries its vowel; a consonant with a virama joins the next |
| letters of South-East Asia | 1/2 | vowels and final consonants have letters of their own, marks are not counted |
| letters of abjads | 1/2 | short vowels are not written |
| letters of alphabets | 1/3 | common syllables have two or three sounds, some written with two letters |
| words of Vietnamese | 1 | it is written syllable by syllable |
| digits | 1 1/2 | each is said with its place, except the last: 342 has five syllables in Chinese |
| symbols | 2 | read as a word: "percent", "euro" |
| marks of a clause or sentence | 1/2 | the syllable before a boundary is lengthened |
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from asr_server.text import boundary, scripts
from asr_server.text.boundary import Boundary

_JAPANESE, _VIETNAMESE = "Japanese", "Vietnamese"
_HAN = re.compile(f"[{scripts.HAN}]")
_SYLLABIC = re.compile(f"[{scripts.KANA}\\uac00-\\ud7a3]")
_GLUED_KANA = re.compile("[ぁぃぅぇぉゃゅょゎァィゥェォャュョヮ]")  # they change the vowel of the character before
_INDIC = re.compile("[\\u0900-\\u0dff]")
_SOUTH_EAST = re.compile("[\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff]")
_ABJAD = re.compile("[\\u0590-\\u08ff\\ufb1d-\\ufdff\\ufe70-\\ufeff]")
_VIRAMA_CLASS = 9  # the canonical combining class of viramas
_LENGTHENING = {Boundary.TIED: 0.0, Boundary.NONE: 0.0, Boundary.CLAUSE: 0.5, Boundary.SENTENCE: 0.5}
_MIN_SYLLABLES = 0.5


@lru_cache(maxsize=65_536)
def syllables(word: str, language: str = "") -> float:
    """Return the estimated syllables of `word` in `language` (the model's name for it); at least 0.5."""
    lengthening = _LENGTHENING[boundary.after(word)]
    if language == _VIETNAMESE and not any(char.isdigit() for char in word):
        return 1 + lengthening
    viramas = sum(1 for char in word[:-1] if unicodedata.combining(char) == _VIRAMA_CLASS)
    return max(_MIN_SYLLABLES, sum(_weight(char, language) for char in word) - viramas + lengthening)


def _weight(char: str, language: str) -> float:
    category = unicodedata.category(char)
    if category[0] == "N" and not _HAN.match(char):
        return 1.5
    if category[0] == "S" or char in "%&@％＆＠":
        return 2.0
    return _letter(char, language) if category[0] == "L" or _HAN.match(char) else 0.0


def _letter(char: str, language: str) -> float:
    if _HAN.match(char):
        return 1.5 if language == _JAPANESE else 1.0
    if _GLUED_KANA.match(char):
        return 0.0
    if _SYLLABIC.match(char) or _INDIC.match(char):
        return 1.0
    return 1 / 2 if _SOUTH_EAST.match(char) or _ABJAD.match(char) else 1 / 3
