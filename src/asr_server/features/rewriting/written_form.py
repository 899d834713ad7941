"""Numbers in digits: amounts, percentages, units, times, years and digits that are read out one by one.

The inverse of `speech_output/spoken_form.py`, with the same words. Dates keep the name of the month.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from asr_server.features.rewriting import number_words
from asr_server.features.rewriting.edits import Edit
from asr_server.features.rewriting.number_words import NumberWord
from asr_server.features.speech_output.spoken_form import HOURS, UNITS, NumberWords

# At least this many digits that are read out one by one are one number.
_LEAST_DIGITS = 4
_CENTS = {
    "de": "cent", "en": "cents?|pence|penny", "es": "céntimos?|centavos?", "fr": "centimes?", "it": "centesim[io]",
    "nl": "cent", "pt": "cêntimos?|centavos?",
}  # fmt: skip
_JOINERS = {"de": "und", "en": "and", "es": "con|y", "fr": "et", "it": "e", "nl": "en", "pt": "e"}
_GAP = re.compile(r"\s+")
_OH = re.compile(r"\s+(?:oh|o)\s+", re.IGNORECASE)
_ENGLISH_HALF = re.compile(r"\s+(?:[ap]\.?\s?m\b|o['’]clock\b)", re.IGNORECASE)
_ENGLISH_YEAR_BEFORE = re.compile(r"\b(?:in|since|of|year|until|till|before|after|from|to)\s+\Z", re.IGNORECASE)
_CENTURIES = range(15, 22)
_FRENCH_HOURS = re.compile(r"\s+heures?\s+", re.IGNORECASE)


def written_edits(text: str, language: str) -> list[Edit]:
    """Return the edits that write numbers in digits, in order and disjoint. `language`: one of
    `number_words.LANGUAGES`."""
    return list(_Writer(language).edits(text))


@lru_cache(maxsize=len(number_words.LANGUAGES))
class _Writer:
    """Writes the numbers of one language."""

    def __init__(self, language: str) -> None:
        from babel import Locale
        from babel.dates import get_month_names
        from babel.numbers import get_decimal_symbol

        locale = Locale(language)
        self._language = language
        self._point = get_decimal_symbol(locale)
        rules = NumberWords(language).rules
        names = {"$": rules.dollars, "€": rules.euros, "£": rules.pounds or ()}
        self._currencies = {name.lower(): sign for sign, known in names.items() for name in known}
        self._currency = _following(self._currencies)
        # "¤#,##0.00" has the sign before the number, "#,##0.00 ¤" after it; a space between them does not break.
        self._money = re.sub("[#,0.]+", "%s", locale.currency_formats["standard"].pattern.split(";")[0])
        self._cents = re.compile(rf"\s+(?:{_CENTS[language]})\b", re.IGNORECASE)
        self._joiner = re.compile(rf"\s+(?:(?:{_JOINERS[language]})\s+)?", re.IGNORECASE)
        self._percent = _following([rules.percent])
        self._percent_sign = locale.percent_formats[None].pattern.rpartition("0")[2]
        self._units = {name: unit for unit, key in UNITS.items() for name in _unit_names(key, language)}
        self._unit = _following(self._units)
        months = "|".join(map(re.escape, get_month_names("wide", locale=locale).values()))
        self._month_after = re.compile(rf"\s+(?:(?:of|de|di|do)\s+)?(?:{months})\b")
        self._month_before = re.compile(rf"\b(?:{months})\s+(?:the\s+)?\Z")
        self._hours = re.compile(rf"\s+{HOURS[language]}\b") if language in HOURS else None

    def edits(self, text: str) -> Iterator[Edit]:
        numbers, at = number_words.found(text, self._language), 0
        while at < len(numbers):
            count, edit = self._digits(text, numbers[at:]) or self._phrase(text, numbers, at)
            if edit is not None:
                yield edit
            at += count

    def _phrase(self, text: str, numbers: Sequence[NumberWord], at: int) -> tuple[int, Edit | None]:
        """Return how many numbers the phrase has that begins here, and its edit, or None to keep the words."""
        number, second = numbers[at], numbers[at + 1] if at + 1 < len(numbers) else None
        if second is not None and (edit := self._pair(text, numbers, at)):
            return 2, edit
        if not number.is_ordinal:
            if money := self._currency.match(text, number.end):
                return self._amount(text, number, money, second)
            if percent := self._percent.match(text, number.end):
                return 1, Edit(number.start, percent.end(), number.text + self._percent_sign)
            if unit := self._unit.match(text, number.end):
                name = self._units[unit[1].lower()]
                return 1, Edit(number.start, unit.end(), f"{number.text}\xa0{name}")
        is_certain = not number.is_doubtful or self._is_date_or_time(text, number)
        return 1, Edit(number.start, number.end, number.text) if is_certain else None

    def _is_date_or_time(self, text: str, number: NumberWord) -> bool:
        after = [self._month_after, *([self._hours] if self._hours else [])]
        after += [_ENGLISH_HALF] if self._language == "en" else []
        is_followed = any(pattern.match(text, number.end) for pattern in after)
        return is_followed or self._month_before.search(text, 0, number.start) is not None

    def _digits(self, text: str, numbers: Sequence[NumberWord]) -> tuple[int, Edit] | None:
        """Return how many digits are read out one by one here, and their edit; None for too few."""
        count = 0
        for number in numbers:
            is_digit = number.value is not None and (number.value < 10 or number.text[0] == "0")
            if not is_digit or (count and not _GAP.fullmatch(text, numbers[count - 1].end, number.start)):
                break
            count += 1
        digits = "".join(number.text for number in numbers[:count])
        return (count, Edit(numbers[0].start, numbers[count - 1].end, digits)) if len(digits) >= _LEAST_DIGITS else None

    def _amount(
        self, text: str, number: NumberWord, money: re.Match[str], cents: NumberWord | None
    ) -> tuple[int, Edit]:
        sign = self._currencies[money[1].lower()]
        if cents is not None and cents.value is not None and cents.value < 100 and number.value is not None:
            name = self._cents.match(text, cents.end)
            if name and self._joiner.fullmatch(text, money.end(), cents.start):
                written = f"{number.text}{self._point}{cents.value:02}"
                return 2, Edit(number.start, name.end(), self._with_sign(written, sign))
        return 1, Edit(number.start, money.end(), self._with_sign(number.text, sign))

    def _with_sign(self, written: str, sign: str) -> str:
        return (self._money % written).replace("¤", sign)

    def _pair(self, text: str, numbers: Sequence[NumberWord], at: int) -> Edit | None:
        """Return the edit of two numbers that are a time with minutes or an English year; None if they are neither."""
        first, second = numbers[at : at + 2]
        if first.value is None or second.value is None:
            return None
        is_oh = bool(_OH.fullmatch(text, first.end, second.start)) and second.value < 10
        is_next = is_oh or bool(_GAP.fullmatch(text, first.end, second.start))
        if first.value <= 24 and second.value < 60:
            time = f"{first.value}:{second.value:02}"
            if self._hours and (hours := self._hours.match(text, first.end)):
                if _GAP.fullmatch(text, hours.end(), second.start):
                    return Edit(first.start, second.end, time + hours[0])
            elif self._language == "fr" and _FRENCH_HOURS.fullmatch(text, first.end, second.start):
                return Edit(first.start, second.end, f"{first.value}\xa0h\xa0{second.value:02}")
            elif self._language == "en" and is_next and _ENGLISH_HALF.match(text, second.end):
                return Edit(first.start, second.end, time)
        if self._language == "en" and is_next and self._is_year(text, numbers, at, is_oh=is_oh):
            return Edit(first.start, second.end, str(100 * first.value + second.value))
        return None

    def _is_year(self, text: str, numbers: Sequence[NumberWord], at: int, *, is_oh: bool) -> bool:
        """Return True if two numbers such as "nineteen eighty four" are a year, judged by the text around them."""
        first, second = numbers[at : at + 2]
        assert second.value is not None
        if first.value not in _CENTURIES or not (is_oh or 10 <= second.value < 100):
            return False
        if at + 2 < len(numbers) and _GAP.fullmatch(text, second.end, numbers[at + 2].start):
            return False
        is_date = at > 0 and numbers[at - 1].is_ordinal and not text[numbers[at - 1].end : first.start].strip(" ,")
        before = (_ENGLISH_YEAR_BEFORE, self._month_before)
        return is_date or any(pattern.search(text, 0, first.start) for pattern in before)


def _following(names: Sequence[str] | dict[str, str]) -> re.Pattern[str]:
    """Return the pattern of one of these names after a number."""
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return re.compile(rf"\s+({'|'.join(longest_first)})\b", re.IGNORECASE)


def _unit_names(key: str, language: str) -> set[str]:
    """Return the singular and plural names of a unit, in lower case."""
    from babel.units import format_unit

    tags = (language, "en_GB") if language == "en" else (language,)
    phrases = {format_unit(count, key, length="long", locale=tag) for tag in tags for count in (1, 2)}
    return {" ".join(phrase.split()[1:]).lower() for phrase in phrases if phrase}
