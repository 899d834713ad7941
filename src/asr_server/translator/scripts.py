"""Whether a text is written in a language's script: how a translation into the wrong language is noticed, if only
between scripts. Not language detection."""

from __future__ import annotations

import unicodedata

from asr_server.text.target_languages import LanguageTag

# ISO 15924 codes by the first word of their letters' names in Unicode.
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
# Latin letters stand in texts of every script: names, brands, formulas. This many and no others are a foreign text.
_LATIN_ALONE = 12
# Letters of a third script do not happen to stand there; one may be a symbol.
_THIRD_ALONE = 2


def foreign(text: str, tongue: LanguageTag) -> bool:
    """Whether the text is clearly not written in the tongue's script; False where its script is not known here."""
    own_names = _LETTERS.get(tongue.script)
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
