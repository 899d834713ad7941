"""Finds personal data by its form or its check digits, even if digits and signs are said in words.

Names, addresses and other data without a fixed form are not found. When in doubt, the search errs on the safe side: any
seven digits in a row count as a telephone number, unless they are a date or an amount.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address

from asr_server.features.rewriting import number_words
from asr_server.features.rewriting.edits import Edit
from asr_server.recordings.requests import PersonalData

_CLEAREST_FIRST = tuple(PersonalData)


def find(parts: Iterable[tuple[str, str]], kinds: Collection[PersonalData]) -> list[Edit]:
    """Return the edits that mask these kinds in consecutive texts, in order and disjoint.

    `parts`: the texts, with the ISO codes of their languages. Matches that overlap become one edit, so that nothing of
    either is left.
    """
    written, starts, ends = [], array("L"), array("L")  # text with digits for words, and where its characters were
    length, languages = 0, set[str]()
    for text, language in parts:
        at = 0
        for start, end, digits in [*_digit_words(text, language), (len(text), len(text), "")]:
            written += [text[at:start].translate(_CJK_DIGITS), digits]
            starts.extend([*range(length + at, length + start), *[length + start] * len(digits)])
            ends.extend([*range(length + at + 1, length + start + 1), *[length + end] * len(digits)])
            at = end
        length += len(text)
        languages.add(language)
    found: list[tuple[int, int, PersonalData]] = []
    for first, last, kind in sorted(_candidates("".join(written), frozenset(languages), kinds)):
        start, end = starts[first], ends[last - 1]
        if found and start < found[-1][1]:
            start, end = found[-1][0], max(found[-1][1], end)
            kind = min(found.pop()[2], kind, key=_CLEAREST_FIRST.index)
        found.append((start, end, kind))
    return [Edit(start, end, f"[{kind.upper()}]", kind) for start, end, kind in found]


def _candidates(
    text: str, languages: frozenset[str], kinds: Collection[PersonalData]
) -> Iterator[tuple[int, int, PersonalData]]:
    """Yield the parts that look like one of the kinds. They may overlap."""
    for kind, finder in ((PersonalData.EMAIL, _emails), (PersonalData.IP, _ips), (PersonalData.IBAN, _ibans)):
        if kind in kinds:
            yield from ((start, end, kind) for start, end in finder(text, languages))
    for run in _RUN.finditer(text):
        if found := _kind_of_digits(run[0], kinds):
            yield *run.span(), found


# -- digits in words ---------------------------------------------------------------------------------------------------

_CJK_DIGITS = str.maketrans("〇零一二三四五六七八九幺", "001234567891")
_REPEATED = {"double": 2, "triple": 3}
_NEAR = 40  # characters
_ENGLISH_ZERO = re.compile(r"\boh\b", re.IGNORECASE)
_ENGLISH_REPEATED = re.compile(r"\b(double|triple)\s+\Z", re.IGNORECASE)


def _digit_words(text: str, language: str) -> list[tuple[int, int, str]]:
    """Return the numbers in words: first character, character after the last, and digits."""
    if language not in number_words.LANGUAGES:
        return []
    numbers = [(one.start, one.end, one.text) for one in number_words.found(text, language) if not one.is_ordinal]
    if language == "en":
        numbers = [_repeated(text, *one) for one in numbers]
        numbers += [(zero.start(), zero.end(), "0") for zero in _ENGLISH_ZERO.finditer(text)]
    return sorted(numbers)


def _repeated(text: str, start: int, end: int, digits: str) -> tuple[int, int, str]:
    before = _ENGLISH_REPEATED.search(text, max(0, start - _NEAR), start)
    if before is None:
        return start, end, digits
    return before.start(), end, digits[0] * (_REPEATED[before[1].lower()] - 1) + digits


# -- runs of digits ----------------------------------------------------------------------------------------------------

_RUN = re.compile(r"(?:[+(]\s?){0,3}\d(?:[\s().\-–/,、]{0,4}\d)*")
_DAY, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:19|20)\d\d"
_DATE = re.compile(f"{_YEAR}([-./]){_DAY}\\1{_DAY}|{_DAY}([-./]){_DAY}\\2{_YEAR}")
# Grouped by commas only: telephone numbers also have groups of three digits with blanks or points between them.
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d{1,2})?")
_CARD_DIGITS = range(13, 20)
_MOST_COMPARED = 400
# With few exceptions, a national number has at least seven digits. There is no upper bound: ITU-T E.164 allows fifteen,
# and two numbers may follow each other.
_LEAST_PHONE, _LEAST_NUMBER = 7, 3


def _kind_of_digits(run: str, kinds: Collection[PersonalData]) -> PersonalData | None:
    digits = "".join(str(unicodedata.decimal(char)) for char in run if char.isdecimal())
    is_phone = len(digits) >= _LEAST_PHONE and not _DATE.fullmatch(run) and not _GROUPED.fullmatch(run)
    if PersonalData.CARD in kinds and _has_card(digits):
        return PersonalData.CARD
    if PersonalData.PHONE in kinds and is_phone:
        return PersonalData.PHONE
    return PersonalData.NUMBER if PersonalData.NUMBER in kinds and len(digits) >= _LEAST_NUMBER else None


def _has_card(digits: str) -> bool:
    """Return True if the digits contain the number of a payment card, which its date and security code may follow.

    Assume one among more digits than can be compared in a hundredth of a second.
    """
    from stdnum import luhn

    if len(digits) > _MOST_COMPARED:
        return True
    windows = (digits[at : at + size] for at in range(len(digits)) for size in _CARD_DIGITS if at + size <= len(digits))
    return any(window[0] in "23456" and luhn.is_valid(window) for window in windows)


# -- email addresses and IP addresses ----------------------------------------------------------------------------------

_AT = {
    "de": "at|ät|klammeraffe", "en": "at", "es": "arroba", "fr": "arobase|at", "it": "chiocciola|at",
    "nl": "apenstaartje|at", "pt": "arroba",
}  # fmt: skip
_DOT = {"de": "punkt", "en": "dot", "es": "punto", "fr": "point", "it": "punto", "nl": "punt", "pt": "ponto"}
_ANY_DOT = "|".join(["dot", "point", *_DOT.values()])
_LONGEST_NAME = 300  # characters, as spoken
_CHAR = "[A-Za-z\u00c0-\u024f0-9_]"
_TOP_LEVEL = "[A-Za-z\u00c0-\u024f]{2,62}+"  # at least two letters, unlike "m" in "at 1130 p.m"
_SPELLED = r"(?:(?:[^\W\d_]|\d{1,9})\s+){0,40}"
_DASHES = "underscore|unterstrich|minus|dash|hyphen|plus|bindestrich|tiret|guion|trattino"
_IPV4 = re.compile(
    rf"(?<![\d.])\d(?:\s?\d){{0,2}}(?:(?:\s?\.\s?|\s+(?:{_ANY_DOT})\s+)\d(?:\s?\d){{0,2}}){{3}}(?!\.?\d)", re.IGNORECASE
)
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")


@lru_cache(maxsize=64)
def _address(languages: frozenset[str]) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of an email address: the sign "at", the name that ends before it, and the host that begins
    after it. Signs may be written, or said in one of the languages or in English."""
    known = sorted(languages & _AT.keys() | {"en"})
    at, dot = ("|".join(table[language] for language in known) for table in (_AT, _DOT))
    joint = rf"(?:[.+%&'-]|\s+(?:{_DASHES}|{dot})\s+)"
    name = rf"{_CHAR}{{1,64}}+(?:{joint}{_CHAR}{{1,64}}+){{0,20}}(?:\s+\d{{1,9}}){{0,20}}"
    label = rf"{_CHAR}(?:{_CHAR}|-|\s+(?:{_DASHES})\s+){{0,62}}+(?:\s+\d{{1,9}}){{0,9}}+"
    point = rf"(?:\.|\s+(?:{dot})\s+)"
    return (
        # Only at the start of a run of blanks: a search from each blank takes quadratic time.
        re.compile(rf"\s?@\s?|(?<!\s)\s+(?:{at})\s+", re.IGNORECASE),
        re.compile(rf"(?<!{_CHAR}){_SPELLED}{name}\Z", re.IGNORECASE),
        re.compile(rf"{_SPELLED}{label}(?:{point}{label}){{0,7}}{point}{_TOP_LEVEL}", re.IGNORECASE),
    )


def _emails(text: str, languages: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Yield the email addresses. A name is searched only if a host follows, so that long texts do not take too long."""
    sign, named, hosted = _address(languages)
    last = 0
    for at in sign.finditer(text):
        host = hosted.match(text, at.end()) if at.start() >= last else None
        first = max(last, at.start() - _LONGEST_NAME)
        if host and (name := named.search(text[first : at.start()])):
            last = host.end()
            yield first + name.start(), last


def _ips(text: str, _: frozenset[str]) -> Iterator[tuple[int, int]]:
    for match in _IPV4.finditer(text):
        parts = re.split(rf"\.|(?:{_ANY_DOT})", match[0], flags=re.IGNORECASE)
        if all(int("".join(part.split())) < 256 for part in parts):
            yield match.span()
    for match in _IPV6.finditer(text):
        with suppress(ValueError):
            ip_address(match[0])
            yield match.span()


# -- accounts ----------------------------------------------------------------------------------------------------------

# A look-ahead, since an account number may begin inside text that looks like another one.
_IBAN = re.compile(
    r"(?=((?<![^\W\d_])[A-Za-z][\s.-]?[A-Za-z](?:[\s.-]{0,2}[0-9]){2}(?:[\s.-]{0,2}[A-Za-z0-9]){11,30}))", re.ASCII
)
_IBAN_CHARS = range(34, 14, -1)


def _ibans(text: str, _: frozenset[str]) -> Iterator[tuple[int, int]]:
    from stdnum import iban

    last = 0
    for match in _IBAN.finditer(text):
        if match.start() < last:
            continue
        places = [at for at in range(*match.span(1)) if text[at].isalnum()]
        for count in _IBAN_CHARS:
            end = places[count - 1] + 1 if count <= len(places) else 0
            if end and not text[end : end + 1].isalnum() and iban.is_valid("".join(text[at] for at in places[:count])):
                yield match.start(), end
                last = end
                break
