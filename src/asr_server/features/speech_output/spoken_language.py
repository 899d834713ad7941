"""The language of a text by its script, for texts that come without one."""

from __future__ import annotations

import re

from asr_server.text import scripts

# The blocks of a script and the languages that are written in it. The first is assumed where nothing else is known.
_SCRIPTS = [
    (scripts.HAN, ["zh", "ja", "yue", "wuu", "nan", "hak"]),
    (scripts.KANA, ["ja"]),
    ("\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff", ["ko"]),
    (scripts.THAI, ["th"]),
    ("\u0e80-\u0eff", ["lo"]),
    ("\u1000-\u109f", ["my"]),
    ("\u1780-\u17ff", ["km"]),
    ("\u0f00-\u0fff", ["bo", "dz"]),
    (
        "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f",
        ["ru", "uk", "be", "bg", "mk", "sr", "bs", "kk", "ky", "tg", "mn", "tt", "ba", "cv", "ce", "os", "uz"],
    ),
    ("\u0370-\u03ff\u1f00-\u1fff", ["el", "grc"]),
    ("\u0530-\u058f", ["hy"]),
    ("\u10a0-\u10ff\u1c90-\u1cbf", ["ka"]),
    ("\u0590-\u05ff\ufb1d-\ufb4f", ["he", "iw", "yi", "ji"]),
    (
        "\u0600-\u06ff\u0750-\u077f\u0870-\u08ff\ufb50-\ufdff\ufe70-\ufeff",
        ["ar", "fa", "ur", "ps", "ckb", "ug", "sd", "ku", "pa", "ks", "az"],
    ),
    ("\u0900-\u097f\ua8e0-\ua8ff", ["hi", "mr", "ne", "sa", "kok", "mai", "bho", "sd", "ks"]),
    ("\u0980-\u09ff", ["bn", "as"]),
    ("\u0a00-\u0a7f", ["pa"]),
    ("\u0a80-\u0aff", ["gu"]),
    ("\u0b00-\u0b7f", ["or"]),
    ("\u0b80-\u0bff", ["ta"]),
    ("\u0c00-\u0c7f", ["te"]),
    ("\u0c80-\u0cff", ["kn"]),
    ("\u0d00-\u0d7f", ["ml"]),
    ("\u0d80-\u0dff", ["si"]),
    ("\u1200-\u139f\u2d80-\u2ddf", ["am", "ti", "gez"]),
]
_PATTERNS = [(re.compile(f"[{blocks}]+"), languages) for blocks, languages in _SCRIPTS]
_LANGUAGES = {languages[0]: languages for _, languages in _SCRIPTS}
_LATIN = re.compile("[A-Za-z\u00aa-\u02af\u1e00-\u1eff]+")
# Scripts whose characters are syllables or words, and how many letters of Latin one of them counts as.
_SYLLABIC = frozenset(["zh", "ja", "ko"])
_LETTERS_IN_SYLLABLE = 3


def language_of(text: str, default: str) -> str:
    """Return the language code of `text` by the script of most of its letters.

    `default`, a language tag, where that script is Latin, where there are no letters, and where the default language
    is written in that script.
    """
    letters = {languages[0]: _letters(pattern, text) for pattern, languages in _PATTERNS}
    if letters["ja"]:  # kana: with them Chinese characters are Japanese too
        letters["ja"] += letters.pop("zh")
    counts = {code: n * (_LETTERS_IN_SYLLABLE if code in _SYLLABIC else 1) for code, n in letters.items()}
    code = max(counts, key=lambda code: counts[code])
    if counts[code] <= _letters(_LATIN, text):
        return default
    primary = re.split("[-_]", default.lower(), maxsplit=1)[0]
    return default if primary in _LANGUAGES[code] else code


def _letters(pattern: re.Pattern[str], text: str) -> int:
    return sum(map(str.isalpha, "".join(pattern.findall(text))))
