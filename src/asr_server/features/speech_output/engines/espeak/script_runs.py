"""A sentence as runs of one script each, with the language that eSpeak NG is to speak them in.

The library can change its language inside a text, but reads files for that, and the sandbox lets it open none.
"""

from __future__ import annotations

import unicodedata

from asr_server.core.errors import InvalidInput
from asr_server.text import languages
from asr_server.text.scripts import LETTER_NAMES

# The language that letters are read in unless another one is stated, by the first word of their Unicode names.
LANGUAGES = {
    "LATIN": "en-us",
    "CYRILLIC": "ru",
    "GREEK": "el",
    "ARABIC": "ar",
    "HEBREW": "he",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "THAI": "th",
    "MYANMAR": "my",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "ETHIOPIC": "am",
    "HANGUL": "ko",
    "CJK": "zh",
    "BOPOMOFO": "zh",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
}

# Each takes a process of 10 ms, and nobody else is spoken for meanwhile.
_MAX_RUNS = 16


def script_runs(text: str, language: str) -> list[tuple[str, str]]:
    """Return the text in order, cut where the script of its letters changes, each part with its language.

    Characters that are no letters belong to the part before them. Letters of a script without a language stay with
    their neighbours, and so do all letters after the `_MAX_RUNS`th change.
    """
    own = own_letters(language)
    runs: list[tuple[str, str]] = []
    for char in text:
        spoken_in = _language(char, language, own) if char.isalpha() else ""
        if not runs:
            runs.append((spoken_in, char))
        elif not spoken_in or runs[-1][0] in ("", spoken_in) or len(runs) == _MAX_RUNS:
            runs[-1] = (runs[-1][0] or spoken_in, runs[-1][1] + char)
        else:
            runs.append((spoken_in, char))
    return [(spoken_in or language, part) for spoken_in, part in runs]


def own_letters(language: str) -> frozenset[str]:
    """Return the first words of the Unicode names of the letters of a language, as eSpeak NG reads it."""
    try:
        script = languages.find(language).script
    except InvalidInput:  # the library speaks a few that CLDR does not list, all in Latin letters
        script = "Latn"
    letters = LETTER_NAMES.get(script, frozenset({"LATIN"}))
    return letters - {"CJK"} if script == "Kore" else letters  # it reads Chinese characters as Chinese


def letter_name(char: str) -> str:
    return unicodedata.name(char, "").partition(" ")[0]


def _language(char: str, language: str, own: frozenset[str]) -> str:
    name = letter_name(unicodedata.normalize("NFKC", char)[0])
    return language if name in own else LANGUAGES.get(name, "")
