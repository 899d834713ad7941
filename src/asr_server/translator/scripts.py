"""Recognises a translation into the wrong language, where the languages have different scripts."""

from __future__ import annotations

from asr_server.text.script_names import LETTERS, letter_names
from asr_server.text.target_languages import LanguageTag

# Latin letters occur in texts of every script: names, brands, formulas. This many alone are a wrong script.
_LATIN_ALONE = 12
# Letters of a third script do not occur by chance; a single one may be a symbol.
_THIRD_ALONE = 2


def wrong_script(text: str, language: LanguageTag) -> bool:
    """True if the text is clearly not in the script of the language; False if that script is not listed here."""
    own_names = LETTERS.get(language.script)
    if own_names is None:
        return False
    own = latin = third = 0
    for name in letter_names(text):
        own += name in own_names
        latin += name == "LATIN" and name not in own_names
        third += name != "LATIN" and name not in own_names
    return third > own if own else third >= _THIRD_ALONE or latin >= _LATIN_ALONE
