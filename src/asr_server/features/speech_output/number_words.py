"""Numbers in words by num2words, in the languages for which it is known when the words depend on a noun."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

MAX_NUMBER = 10**12 - 1


@dataclass(frozen=True, slots=True)
class _Language:
    point: str  # the word for the decimal mark
    minus: str  # the word before a negative number
    percent: str
    dollars: tuple[str, str]  # one and several
    euros: tuple[str, str]  # one and several
    pounds: tuple[str, str] | None  # None: feminine, unlike the other two
    cents: str  # after units and before the number of cents
    # Words that change with the gender of the noun.
    gendered: str
    # Words that have another form before a masculine noun, and that form; None: it depends on more than the gender.
    masculine: tuple[tuple[str, str | None], ...] = ()


_LANGUAGES = {
    "en": _Language(
        "point", "minus", "percent", ("dollar", "dollars"), ("euro", "euros"), ("pound", "pounds"), " and ", r"(?!)"
    ),
    "de": _Language(
        "Komma", "minus", "Prozent", ("Dollar", "Dollar"), ("Euro", "Euro"), ("Pfund", "Pfund"), " ", r"eins$",
        ((r"eins$", None),),
    ),
    "fr": _Language(
        "virgule", "moins", "pour cent", ("dollar", "dollars"), ("euro", "euros"), None, " ", r"\bun$",
        ((r"(?:million|milliard)s?$", None),),
    ),
    "es": _Language(
        "coma", "menos", "por ciento", ("dólar", "dólares"), ("euro", "euros"), None, " con ", r"uno\b|entos\b",
        ((r"uno mil|(?:millón|millones)$", None), (r"veintiuno$", "veintiún"), (r"uno$", "un")),
    ),
    "it": _Language(
        "virgola", "meno", "per cento", ("dollaro", "dollari"), ("euro", "euro"), None, " e ", r"\buno$",
        ((r"(?:milion|miliard)[ei]$", None), (r"\buno$", "un")),
    ),
    "nl": _Language(
        "komma", "min", "procent", ("dollar", "dollar"), ("euro", "euro"), ("pond", "pond"), " ", r"(?!)"
    ),
    "pt": _Language(
        "vírgula", "menos", "por cento", ("dólar", "dólares"), ("euro", "euros"), None, " e ",
        r"\bum\b|\bdois\b|entos\b", ((r"(?:milhão|milhões|bilhão|bilhões)$", None),),
    ),
}  # fmt: skip


def primary(language: str) -> str:
    """Return the language of a language tag, without script and region."""
    return re.split("[-_]", language.lower(), maxsplit=1)[0]


def knows(language: str) -> bool:
    return primary(language) in _LANGUAGES


class NumberWords:
    """The words of one language. Numbers are between 0 and `MAX_NUMBER`; None: the words depend on what is counted."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.rules = _LANGUAGES[language]

    def cardinal(self, number: int) -> str:
        """Return the number as it is counted, without a noun."""
        return _cardinal(self.language, number)

    def before_any_noun(self, number: int) -> str | None:
        words = self.cardinal(number)
        return None if re.search(self.rules.gendered, words) else words

    def before_masculine(self, number: int) -> str | None:
        words = self.cardinal(number)
        for pattern, form in self.rules.masculine:
            if re.search(pattern, words):
                return re.sub(pattern, form, words) if form else None
        return words

    def feminine(self, number: int) -> str:
        """Return the words before a feminine noun, in French."""
        return re.sub(r"\bun$", "une", self.cardinal(number))

    def decimal(self, number: int, fraction: str) -> str:
        digits = " ".join(self.cardinal(int(digit)) for digit in fraction)
        return f"{self.cardinal(number)} {self.rules.point} {digits}"

    def ordinal(self, number: int) -> str:
        return str(_converter(self.language).to_ordinal(number))

    def year(self, number: int) -> str:
        return str(_converter(self.language).to_year(number))


@lru_cache(maxsize=4096)
def _cardinal(language: str, number: int) -> str:
    return str(_converter(language).to_cardinal(number)).replace(",", "")


@cache
def _converter(language: str) -> Any:
    from num2words import CONVERTER_CLASSES

    converter = type(CONVERTER_CLASSES[language])()
    if hasattr(converter, "cards"):
        # Without the names of numbers up to 10**600, all of which it compares: 6 to 13 times as fast.
        converter.cards = OrderedDict((value, name) for value, name in converter.cards.items() if value <= MAX_NUMBER)
    return converter
