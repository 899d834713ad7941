"""Language names and codes: from callers' spellings to the model's names, and back; and names of any living language.

`find` returns only names from Unicode CLDR (through Babel): no caller's text can become the name of a language.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from asr_server.core.errors import InvalidInput, UnsupportedLanguage
from asr_server.text.scripts import LETTER_NAMES, normal_form

if TYPE_CHECKING:
    from collections.abc import Mapping


# The 30 languages of Qwen3-ASR by the names it uses, with their ISO 639 codes (Cantonese has no two-letter one).
_CODES = {
    "Chinese": "zh",
    "English": "en",
    "Cantonese": "yue",
    "Arabic": "ar",
    "German": "de",
    "French": "fr",
    "Spanish": "es",
    "Portuguese": "pt",
    "Indonesian": "id",
    "Italian": "it",
    "Korean": "ko",
    "Russian": "ru",
    "Thai": "th",
    "Vietnamese": "vi",
    "Japanese": "ja",
    "Turkish": "tr",
    "Hindi": "hi",
    "Malay": "ms",
    "Dutch": "nl",
    "Swedish": "sv",
    "Danish": "da",
    "Finnish": "fi",
    "Polish": "pl",
    "Czech": "cs",
    "Filipino": "fil",
    "Persian": "fa",
    "Greek": "el",
    "Romanian": "ro",
    "Hungarian": "hu",
    "Macedonian": "mk",
}
_NAMES = {code: name for name, code in _CODES.items()}
# Tags of names in use, and of two codes, that CLDR does not list or gives another meaning.
_TAGS_OF_NAMES = {
    **{"mandarin": "zh", "cn": "zh", "tl": "fil", "tagalog": "fil", "farsi": "fa", "castilian": "es", "flemish": "nl"},
    **{"moldavian": "ro", "moldovan": "ro", "bokmal": "nb"},
}
# If the language is not known, clients send nothing or one of these: words, and the codes of ISO 639 for several
# languages and for an undetermined one.
_ANY_LANGUAGE = frozenset({"", "auto", "und", "mul", "multi", "null", "none", "detect"})
_SHAPE = re.compile(r"[a-z]{2,3}([-_][a-z0-9]{1,8})*|[a-z]{4,20}( [a-z]{2,20})?", re.IGNORECASE)


def model_languages() -> tuple[str, ...]:
    return tuple(_CODES)


def normalize(value: str | None) -> str | None:
    """Return the model's name of a language given as ISO code, locale (`en-US`), English name, `auto` or nothing.

    None: the model detects the language. Raises `invalid_language_format` for a value without the form of a language,
    and `UnsupportedLanguage` for a language that the model does not know.
    """
    text = (value or "").strip()
    if text.lower() in _ANY_LANGUAGE:
        return None
    if not _SHAPE.fullmatch(text):
        raise InvalidInput(
            "The language must be an ISO 639-1 code such as 'en', a locale such as 'en-US', or an English name.",
            code="invalid_language_format",
            param="language",
        )
    name = _lookup(text.lower().replace("_", "-"))
    if name is None:
        raise UnsupportedLanguage(
            f"The language is not known. Known language codes: {', '.join(sorted(_CODES.values()))}.",
            param="language",
        )
    return name


def _lookup(text: str) -> str | None:
    primary, _, rest = text.partition("-")
    if primary == "zh" and not {"hk", "yue"}.isdisjoint(rest.split("-")):
        return "Cantonese"
    known = _NAMES.get(primary) or _NAMES.get(_TAGS_OF_NAMES.get(primary, ""))
    if known is None and len(primary) == 3:  # CLDR also knows the three-letter codes of ISO 639-2 and 639-3
        from babel.core import get_global

        known = _NAMES.get(get_global("language_aliases").get(primary, ""))
    return known or (text.title() if text.title() in _CODES else None)


def code(name: str) -> str:
    """Return the ISO code of a language by the model's name; "" for an unknown name."""
    return _CODES.get(name, "")


_TAG = re.compile(r"[a-z]{2,3}([-_][a-z0-9]{1,8}){0,4}", re.IGNORECASE)
_LONGEST_NAME = 60
# Codes of CLDR that stand for no language.
_NO_LANGUAGE = frozenset({"und", "mul", "mis", "zxx", "root"})


# The language that letters are read in unless another one is stated, by the first word of their Unicode names.
OF_LETTERS = {
    **{"LATIN": "en-us", "CYRILLIC": "ru", "GREEK": "el", "ARABIC": "ar", "HEBREW": "he", "DEVANAGARI": "hi"},
    **{"BENGALI": "bn", "GURMUKHI": "pa", "GUJARATI": "gu", "TAMIL": "ta", "TELUGU": "te", "KANNADA": "kn"},
    **{"MALAYALAM": "ml", "SINHALA": "si", "THAI": "th", "MYANMAR": "my", "GEORGIAN": "ka", "ARMENIAN": "hy"},
    **{"ETHIOPIC": "am", "HANGUL": "ko", "CJK": "zh", "BOPOMOFO": "zh", "HIRAGANA": "ja", "KATAKANA": "ja"},
}


@dataclass(frozen=True, slots=True)
class LanguageTag:
    """A language that can be translated to."""

    name: str  # in English ("Brazilian Portuguese")
    tag: str  # BCP 47 ("pt-BR")
    primary: str  # the first part of `tag`
    script: str  # ISO 15924 code of its usual script, "" if unknown

    def same_as(self, other: LanguageTag) -> bool:
        """True if no translation is needed: British and American English are the same, the Chinese scripts are not."""
        return self.primary == other.primary and (self.script == other.script or not (self.script and other.script))


def find(value: str, *, param: str = "language") -> LanguageTag:
    """Return the language of a BCP 47 tag (`de`, `pt-BR`, `zh-Hant`) or an English name.

    Raises `invalid_language_format` if `value` has the form of neither, and `UnsupportedLanguage` if CLDR does not list
    it; both errors name `param`.
    """
    text = " ".join(value.split())
    if not (key := _fold(text[: _LONGEST_NAME + 1])) or len(text) > _LONGEST_NAME:
        raise _invalid(param)
    tag = _codes_of_names().get(key) or _TAGS_OF_NAMES.get(key)
    if tag is None and not _TAG.fullmatch(text):
        raise _invalid(param) if re.search(r"[^\w\s'’().-]", text) else _unknown(param)
    found = _by_tag(tag or text)
    if found is None:
        raise _unknown(param)
    return found


def letters_of(language: str) -> frozenset[str]:
    """Return the first words of the Unicode names of the letters that are read in `language`."""
    try:
        script = find(language).script
    except InvalidInput:  # eSpeak NG speaks a few languages that CLDR does not list, all in Latin letters
        script = "Latn"
    letters = LETTER_NAMES.get(script, frozenset({"LATIN"}))
    return letters - {"CJK"} if script == "Kore" else letters  # Chinese characters are read as Chinese


def _invalid(param: str) -> InvalidInput:
    return InvalidInput(
        "The language must be a tag such as 'de' or 'pt-BR', or an English name such as 'German'.",
        code="invalid_language_format",
        param=param,
    )


def _unknown(param: str) -> UnsupportedLanguage:
    return UnsupportedLanguage("The language is not in Unicode's list of languages.", param=param)


def _by_tag(tag: str) -> LanguageTag | None:
    from babel.core import get_global, parse_locale

    languages, scripts, territories = _english()
    try:
        primary, territory, script, *_ = parse_locale(tag.replace("_", "-"), sep="-")
    except ValueError:
        return None
    primary, _, implied = get_global("language_aliases").get(primary, primary).partition("_")
    script = script or (implied if implied in scripts else None)
    if primary not in languages or primary in _NO_LANGUAGE:
        return None
    details = [names[code] for code, names in ((script, scripts), (territory, territories)) if code and code in names]
    known = "_".join(part for part in (primary, script, territory) if part)
    name = languages.get(known) or languages[primary] + (f" ({', '.join(details)})" if details else "")
    return LanguageTag(name, known.replace("_", "-"), primary, script or _likely_script(primary, territory))


def _likely_script(primary: str, territory: str | None) -> str:
    from babel.core import get_global

    likely = get_global("likely_subtags")
    full = likely.get(f"{primary}_{territory}") or likely.get(primary) or ""
    return next((part for part in full.split("_")[1:] if len(part) == 4), "")


@cache
def _english() -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]:
    from babel import Locale

    english = Locale("en")
    return english.languages, english.scripts, english.territories


@cache
def _codes_of_names() -> dict[str, str]:
    """Folded English names to CLDR codes: "brazilian portuguese" and "portuguese (brazil)" are both pt_BR."""
    languages, scripts, territories = _english()
    # "ga" is the tag of Irish and the name of another language. The tag wins, as BCP 47 defines it.
    names = {key: code for code, name in languages.items() if (key := _fold(name)) not in languages or key == code}
    for code in languages:
        primary, _, rest = code.partition("_")
        if rest in scripts or rest in territories:
            detail = scripts.get(rest) or territories[rest]
            names.setdefault(_fold(f"{languages[primary]} ({detail})"), code)
    return names


def _fold(name: str) -> str:
    plain = "".join(c for c in normal_form("NFKD", name) if not unicodedata.combining(c))
    return " ".join(plain.replace("’", "'").casefold().split())
