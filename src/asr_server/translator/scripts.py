"""Recognises a translation into the wrong language, where the languages have different scripts."""

from __future__ import annotations

import unicodedata

from asr_server.text.target_languages import LanguageTag

# For each ISO 15924 code the first word of the Unicode names of its letters.
_LETTERS: dict[str, frozenset[str]] = {
    "Latn": frozenset({"LATIN"}),
    "Cyrl": frozenset({"CYRILLIC"}),
    "Grek": frozenset({"GREEK"}),
    "Arab": frozenset({"ARABIC"}),
    "Hebr": frozenset({"HEBREW"}),
    "Deva": frozenset({"DEVANAGARI"}),
    "Beng": frozenset({"BENGALI"}),
    "Guru": frozenset({"GURMUKHI"}),
    "Gujr": frozenset({"GUJARATI"}),
    "Taml": frozenset({"TAMIL"}),
    "Telu": frozenset({"TELUGU"}),
    "Knda": frozenset({"KANNADA"}),
    "Mlym": frozenset({"MALAYALAM"}),
    "Sinh": frozenset({"SINHALA"}),
    "Thai": frozenset({"THAI"}),
    "Laoo": frozenset({"LAO"}),
    "Mymr": frozenset({"MYANMAR"}),
    "Khmr": frozenset({"KHMER"}),
    "Geor": frozenset({"GEORGIAN"}),
    "Armn": frozenset({"ARMENIAN"}),
    "Ethi": frozenset({"ETHIOPIC"}),
    "Kore": frozenset({"HANGUL", "CJK"}),
    "Hans": frozenset({"CJK", "BOPOMOFO"}),
    "Hant": frozenset({"CJK", "BOPOMOFO"}),
    # The last two are the marks of length (ー) and of repetition (々).
    "Jpan": frozenset({"HIRAGANA", "KATAKANA", "CJK", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"}),
}
# Latin letters occur in texts of every script: names, brands, formulas. This many alone are a wrong script.
_LATIN_ALONE = 12
# Letters of a third script do not occur by chance; a single one may be a symbol.
_THIRD_ALONE = 2


def wrong_script(text: str, language: LanguageTag) -> bool:
    """Whether the text is clearly not in the script of the language; False if that script is not listed here."""
    own_names = _LETTERS.get(language.script)
    if own_names is None:
        return False
    own = latin = third = 0
    for name in _letter_names(text):
        own += name in own_names
        latin += name == "LATIN" and name not in own_names
        third += name != "LATIN" and name not in own_names
    return third > own if own else third >= _THIRD_ALONE or latin >= _LATIN_ALONE


def _letter_names(text: str) -> list[str]:
    letters = (c for c in unicodedata.normalize("NFKC", text) if c.isalpha())
    return [unicodedata.name(c, "UNKNOWN").split(" ")[0] for c in letters]
