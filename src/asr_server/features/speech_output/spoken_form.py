"""Numbers, dates, times, amounts and units in words, as a speaker reads them.

Only text with a single possible reading is replaced. Years, telephone numbers, versions, postal codes, and numbers
whose words depend on a noun ("1 Haus", "21 casas") keep their digits, which speech engines read themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from babel import Locale


@dataclass(frozen=True, slots=True)
class _Language:
    point: str  # the word for the decimal mark
    minus: str  # the word before a negative number
    percent: str
    dollars: tuple[str, str]  # one and several
    euros: tuple[str, str]  # one and several
    pounds: tuple[str, str] | None  # None: feminine, unlike the other two
    cents: str  # between the units and the number of cents
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
        ((r"(?:millón|millones)$", None), (r"veintiuno$", "veintiún"), (r"uno$", "un")),
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


def primary_language(language: str) -> str:
    return re.split("[-_]", language.lower(), maxsplit=1)[0]


def knows(language: str) -> bool:
    return primary_language(language) in _LANGUAGES


class NumberWords:
    """The words of one language for numbers of at most 12 digits. None: they depend on the noun that is counted."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.rules = _LANGUAGES[language]

    def cardinal(self, number: int) -> str:
        """Return the number as it is counted, without a noun."""
        return self._words(number, "cardinal").replace(",", "")

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
        return self._words(number, "ordinal")

    def year(self, number: int) -> str:
        return self._words(number, "year")

    def _words(self, number: int, form: str) -> str:
        from num2words2 import num2words

        return str(num2words(number, lang=self.language, to=form))  # type: ignore[no-untyped-call]


_MAX_DIGITS = 12
_CONTEXT_CHARACTERS = 24
# Digits with the marks that may stand between them. Unless all of it is a number, date or time, the text is kept.
_DIGITS = re.compile("[0-9]+(?:[.,:/’\xa0\u202f–-][0-9]+)*+")
_FREE_BEFORE = re.compile(r"(?:^|[\s(\[\"'“‘«„»¿¡—])\Z")
_FREE_AFTER = re.compile(r"\Z|[\s)\]\"'”’»“«!?…;—]|[.,:](?:\Z|[\s)\]\"'”’»“«])")
# Digits next to the number: a telephone number, the lines of a table.
_DIGITS_BEFORE = re.compile(r"[0-9)][\s-]?\Z")
_DIGITS_AFTER = re.compile(r"[)]?[\s-]?[(]?[0-9]")
# Signs of units of unknown gender or number, and words that multiply.
_UNKNOWN_UNIT = re.compile(
    r"\s?(?:[kcmµnd]?m[²³23]?|[kmµ]?g|[mcdh]?l|[kMGT]?W|[kMG]?Wh|[kMGT]i?[Bb]|[kMG]?Hz|[kmM]?V|m?A|h|min|s|ms|t|ft|in|lbs?|"
    r"oz|yd|ha|bar|dB|K|St|Std|Tsd|Mio|Mrd|kcal|cal|ppm|px|pt)\b|\s?[^\w\s.,:;!?()\[\]\"'”’»“«…—-]"
)
_SCALE = re.compile(r"\s?(?:[mbtk]n?\b|mil|mrd|mio|bi[lo]|tri|thou|taus|tsd|lakh|crore|hund|mia)", re.IGNORECASE)
_ENGLISH_SCALES = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion", "tn": "trillion"}
_ENGLISH_SCALE = re.compile(r"(k|m|bn|b|tn)\b|\s(thousand|million|billion|trillion)\b", re.IGNORECASE)
_SIGN = re.compile(r"(?P<minus>[-−])?(?P<currency>[$€£]|(?:USD|EUR|GBP)[ \xa0])?\Z")
_CURRENCY_AFTER = re.compile(r"[ \xa0\u202f]?([$€£]|(?:USD|EUR|GBP)\b)")
_CURRENCIES = {"$": "$", "€": "€", "£": "£", "USD": "$", "EUR": "€", "GBP": "£"}
_PERCENT = re.compile(r"[ \xa0\u202f]?%")
_UNIT = re.compile(r"[ \xa0\u202f]?(km/h|mph|km|cm|mm|kg|°C|°F)(?![\w²³/])")
UNITS = {
    "km/h": "speed-kilometer-per-hour",
    "mph": "speed-mile-per-hour",
    "km": "length-kilometer",
    "cm": "length-centimeter",
    "mm": "length-millimeter",
    "kg": "mass-kilogram",
    "°C": "temperature-celsius",
    "°F": "temperature-fahrenheit",
}
_ORDINALS = {
    "en": re.compile(r"(?:st|nd|rd|th)\b"),
    "fr": re.compile(r"(?:er|(?P<feminine>re|ère)|è?me|e)\b"),
}
_ENGLISH_HALF = re.compile(r"\s?[ap]\.?m\b", re.IGNORECASE)
_ENGLISH_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_ENGLISH_DATE_BEFORE = re.compile(rf"\b(?:{_ENGLISH_MONTH}\.?|at) \Z", re.IGNORECASE)
_ENGLISH_DATE_AFTER = re.compile(rf" {_ENGLISH_MONTH}\b", re.IGNORECASE)
_FRENCH_HOURS = re.compile(r"\s?h(?:\s?([0-5][0-9]))?\b")
HOURS = {"de": "Uhr", "nl": "uur"}
_ISO_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_CLOCK_TIME = re.compile(r"([01]?[0-9]|2[0-3])([:.])([0-5][0-9])")
_YEARS = range(1500, 2200)
# Kept in digits: nobody calls "nine hundred and eleven".
_EMERGENCY_NUMBERS = frozenset(["000", "110", "111", "112", "118", "119", "911", "999"])


def spoken_form(text: str, language: str) -> str:
    """Return `text` with numbers in words where the words are certain; `language` is a tag such as `en-GB`.

    A text in a language without rules here is returned unchanged.
    """
    parts, position = [], 0
    for reading in readings(text, language):
        parts += [text[position : reading.start], reading.words]
        position = reading.end
    return "".join([*parts, text[position:]])


def readings(text: str, language: str) -> Iterator[NumberReading]:
    """Yield the numbers that `spoken_form` replaces, in order and disjoint; none in a language without rules here."""
    if not knows(language):
        return
    reader, position = _reader(language), 0
    for digits in _DIGITS.finditer(text):
        reading = reader.read(text, digits)
        if reading and reading.start >= position:  # otherwise the number before includes it
            yield reading
            position = reading.end


@dataclass(frozen=True, slots=True)
class NumberReading:
    """A number in the text, with what belongs to it, and its words."""

    start: int  # first character in the text
    end: int  # character after the last
    words: str  # what is read there


@dataclass(frozen=True, slots=True)
class _Number:
    """A number and what stands around it."""

    whole: int
    fraction: str  # the digits after the decimal mark
    is_long: bool  # without marks of thousands, so that it can be a year or a postal code
    before: str  # the text before it
    after: str  # the text after it


@lru_cache(maxsize=64)
def _reader(language: str) -> _Reader:
    from babel import Locale, UnknownLocaleError

    primary = primary_language(language)
    try:
        locale = Locale.parse(language.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        locale = Locale(primary)
    return _Reader(locale)


class _Reader:
    """Reads the numbers of texts in one language."""

    def __init__(self, locale: Locale) -> None:
        from babel.dates import get_date_format
        from babel.numbers import get_decimal_symbol, get_group_symbol

        self._locale = locale
        self._language = locale.language
        self._words = NumberWords(locale.language)
        decimal, group = get_decimal_symbol(locale), get_group_symbol(locale)
        groups = re.escape(group) + ("\xa0\u202f" if group in "\xa0\u202f" else "")
        self._number = re.compile(f"([0-9]{{1,3}}(?:[{groups}][0-9]{{3}})+|[0-9]+)(?:{re.escape(decimal)}([0-9]+))?")
        pattern = get_date_format("short", locale).pattern.lower()
        self._date_mark = next(char for char in pattern if char in "./-")
        self._month_first = pattern.startswith("m")

    def read(self, text: str, digits: re.Match[str]) -> NumberReading | None:
        """Return the reading of these digits, including their sign and unit, or None if the digits are kept."""
        before = text[max(0, digits.start() - _CONTEXT_CHARACTERS) : digits.start()]
        after = text[digits.end() : digits.end() + _CONTEXT_CHARACTERS]
        written = digits[0]
        if len(written) > 2 * _MAX_DIGITS:
            return None
        sign = _SIGN.search(before)
        assert sign
        before = before[: sign.start()]
        if not _FREE_BEFORE.search(before):
            return None
        found = self._read_date(written) or self._read_time(written, after) if not sign[0] else None
        if found is None and (number := self._parse(written, before, after)):
            found = self._read_money(number, sign["currency"]) if sign["currency"] else self._read_number(number, sign)
        if found is None:
            return None
        words, length = found
        if not _FREE_AFTER.match(after, length):
            return None
        if sign["minus"]:
            words = f"{self._words.rules.minus} {words}"
        return NumberReading(digits.start() - len(sign[0]), digits.end() + length, words)

    def _parse(self, written: str, before: str, after: str) -> _Number | None:
        number = self._number.fullmatch(written)
        if not number:
            return None
        whole = re.sub("[^0-9]", "", number[1])
        if len(whole) > _MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
            return None
        is_long = whole == number[1] and not number[2] and len(whole) > 3
        return _Number(int(whole), number[2] or "", is_long, before, after)

    def _read_date(self, written: str) -> tuple[str, int] | None:
        mark = re.escape(self._date_mark)
        if iso := _ISO_DATE.fullmatch(written):
            days = [_date(iso[1], iso[2], iso[3])]
        elif parts := re.fullmatch(f"([0-9]{{1,2}}){mark}([0-9]{{1,2}}){mark}([0-9]{{4}})", written):
            orders = [(parts[1], parts[2]), (parts[2], parts[1])]
            days = [_date(parts[3], *order) for order in (orders if self._month_first else reversed(orders))]
            if str(self._locale) == "en" and None not in days and days[0] != days[1]:
                return None  # day or month first? The country is not known
        else:
            return None
        day = next((day for day in days if day), None)
        return (self._date_words(day), 0) if day and day.year in _YEARS else None

    def _date_words(self, day: date) -> str:
        from babel.dates import format_date, get_month_names

        words = self._words
        if self._language == "en":
            month = get_month_names("wide", locale=self._locale)[day.month]
            ordinal, year = words.ordinal(day.day), words.year(day.year)
            return f"{month} {ordinal}, {year}" if self._month_first else f"{ordinal} {month} {year}"
        written = format_date(day, "long", locale=self._locale)
        if self._language == "de":
            return written  # the ending of the ordinal number depends on the words around it
        first = words.ordinal(1) if self._language in ("fr", "it") else words.cardinal(1)
        numbers = iter([first if day.day == 1 else words.cardinal(day.day), words.year(day.year)])
        return re.sub("[0-9]+", lambda _: next(numbers), written)

    def _read_time(self, written: str, after: str) -> tuple[str, int] | None:
        if self._language == "fr":
            return self._read_french_time(written, after)
        time = _CLOCK_TIME.fullmatch(written)
        if not time:
            return None
        hour, minute = int(time[1]), int(time[3])
        if self._language in HOURS:
            name = re.match(rf"\s?({HOURS[self._language]})\b", after)
            counted = "ein" if (self._language, hour) == ("de", 1) else self._words.cardinal(hour)
            minutes = f" {self._words.cardinal(minute)}" if minute else ""
            return (f"{counted} {name[1]}{minutes}", name.end()) if name else None
        if self._language != "en" or time[2] == "." or not hour:
            return None
        half = _ENGLISH_HALF.match(after)
        if half and hour > 12:
            return None
        if minute:
            minutes = f" oh {self._words.cardinal(minute)}" if minute < 10 else f" {self._words.cardinal(minute)}"
        else:
            minutes = "" if half else " o'clock" if hour <= 12 else " hundred"
        words = f"{self._words.cardinal(hour)}{minutes}"
        return (f"{words} {half[0]}", half.end()) if half and not half[0][0].isspace() else (words, 0)

    def _read_french_time(self, written: str, after: str) -> tuple[str, int] | None:
        time = _CLOCK_TIME.fullmatch(written)
        hours = _FRENCH_HOURS.match(after) if written.isdecimal() and int(written) < 24 else None
        if not hours and not (time and time[2] == ":"):
            return None
        hour, minute = (int(written), hours[1]) if hours else (int(time[1]), time[3])  # type: ignore[index]
        name = "heures" if hour > 1 else "heure"
        minutes = f" {self._words.feminine(int(minute))}" if minute and int(minute) else ""
        return f"{self._words.feminine(hour)} {name}{minutes}", hours.end() if hours else 0

    def _read_money(self, number: _Number, currency: str) -> tuple[str, int] | None:
        """Read the number with the currency before it."""
        names = self._currency_names(currency)
        scale = _ENGLISH_SCALE.match(number.after) if self._language == "en" else None
        if scale and names:
            name = _ENGLISH_SCALES.get((scale[1] or "").lower()) or scale[2].lower()
            return f"{self._plain_words(number)} {name} {names[1]}", scale.end()
        if not names or _SCALE.match(number.after):
            return None
        words = self._money_words(number, names, currency)
        return (words, 0) if words else None

    def _currency_names(self, currency: str) -> tuple[str, str] | None:
        rules = self._words.rules
        return {"$": rules.dollars, "€": rules.euros, "£": rules.pounds}[_CURRENCIES[currency.strip()]]

    def _money_words(self, number: _Number, names: tuple[str, str], currency: str) -> str | None:
        one, many = names
        is_zero_singular = self._language == "fr"
        if len(number.fraction) not in (0, 2):
            name = one if is_zero_singular and number.whole < 2 else many
            return f"{self._words.decimal(number.whole, number.fraction)} {name}"
        units = self._words.before_masculine(number.whole)
        whole = units and f"{units} {one if number.whole == 1 or (is_zero_singular and not number.whole) else many}"
        cents = int(number.fraction or 0)
        if not cents or not whole:
            return whole
        small = self._words.before_any_noun(cents)
        if self._language == "en":
            one, many = ("penny", "pence") if _CURRENCIES[currency.strip()] == "£" else ("cent", "cents")
            small = f"{small} {one if cents == 1 else many}"
            return f"{whole}{self._words.rules.cents}{small}" if number.whole else small
        return f"{whole}{self._words.rules.cents}{small}" if number.whole and small else None

    def _read_number(self, number: _Number, sign: re.Match[str]) -> tuple[str, int] | None:
        """Read a number with its unit, or by itself if it has no sign."""
        after = number.after
        if currency := _CURRENCY_AFTER.match(after):
            names = self._currency_names(currency[1])
            words = self._money_words(number, names, currency[1]) if names else None
            return (words, currency.end()) if words else None
        if percent := _PERCENT.match(after):
            words = self._percent_words(number)
            return (words, percent.end()) if words else None
        if unit := _UNIT.match(after):
            words = self._unit_words(number, UNITS[unit[1]])
            return (words, unit.end()) if words else None
        if sign["minus"]:
            return None
        ordinal = _ORDINALS[self._language].match(after) if self._language in _ORDINALS else None
        if ordinal and number.whole and not number.fraction:
            return self._ordinal_words(number.whole, ordinal), ordinal.end()
        return (words, 0) if self._stands_alone(number) and (words := self._plain_words(number)) else None

    def _percent_words(self, number: _Number) -> str | None:
        if number.fraction or self._language != "de":
            words: str | None = self._plain_words(number) if number.fraction else self._words.cardinal(number.whole)
        else:
            words = "ein" if number.whole == 1 else self._words.before_any_noun(number.whole)
        return f"{words} {self._words.rules.percent}" if words else None

    def _unit_words(self, number: _Number, unit: str) -> str | None:
        from babel.units import format_unit

        value = Decimal(f"{number.whole}.{number.fraction}") if number.fraction else number.whole
        words = self._plain_words(number) if number.fraction else self._words.before_masculine(number.whole)
        phrase = format_unit(value, unit, length="long", format="0.###", locale=self._locale)
        return f"{words} {' '.join(phrase.split()[1:])}" if words else None

    def _ordinal_words(self, number: int, suffix: re.Match[str]) -> str:
        words = self._words.ordinal(number)
        return "première" if number == 1 and suffix.groupdict().get("feminine") else words

    def _plain_words(self, number: _Number) -> str | None:
        if number.fraction:
            return self._words.decimal(number.whole, number.fraction)
        return self._words.before_any_noun(number.whole)

    def _stands_alone(self, number: _Number) -> bool:
        """True if the number counts something, and is no year, telephone number, day of a month or unknown amount."""
        before, after = number.before, number.after
        if number.is_long or str(number.whole) in _EMERGENCY_NUMBERS or _UNKNOWN_UNIT.match(after):
            return False
        if _DIGITS_BEFORE.search(before) or _DIGITS_AFTER.match(after):
            return False
        if self._language == "de":
            return not after.startswith(".")  # an ordinal number
        is_english_date = _ENGLISH_DATE_BEFORE.search(before) or _ENGLISH_DATE_AFTER.match(after)
        return not (self._language == "en" and is_english_date)


def _date(year: str, month: str, day: str) -> date | None:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None
