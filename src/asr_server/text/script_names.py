"""The scripts of languages, by the names of their letters in Unicode."""

from __future__ import annotations

import unicodedata

# For each ISO 15924 code the first word of the Unicode names of its letters.
LETTERS: dict[str, frozenset[str]] = {
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


def letter_names(text: str) -> list[str]:
    """Return for each letter the first word of its name: LATIN, CYRILLIC, CJK."""
    letters = (c for c in unicodedata.normalize("NFKC", text) if c.isalpha())
    return [unicodedata.name(c, "UNKNOWN").split(" ")[0] for c in letters]
