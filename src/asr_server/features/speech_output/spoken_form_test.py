"""Numbers in words, and what keeps its digits."""

import pytest
from babel import localedata
from hypothesis import example, given
from hypothesis import strategies as st

from asr_server.features.speech_output.spoken_form import NumberWords, knows, spoken_form

READ = {
    "en": {
        "21 cats, 3.14 and 1,234,567": "twenty-one cats, three point one four and one million two hundred and "
        "thirty-four thousand five hundred and sixty-seven",
        "2026-11-23": "November twenty-third, twenty twenty-six",
        "14:30, 9:00 or 3:05 p.m. (3:05pm)": "fourteen thirty, nine o'clock or three oh five p.m. (three oh five pm)",
        "$12.50; $1, £3.01": "twelve dollars and fifty cents; one dollar, three pounds and one penny",
        "$0.50 or 5 USD 6": "fifty cents or five dollars 6",
        "£1m, $2.5bn": "one million pounds, two point five billion dollars",
        "$1.5 million": "one point five million dollars",
        "50%, -3.5 %": "fifty percent, minus three point five percent",
        "60 km/h at -5 °C": "sixty kilometers per hour at minus five degrees Celsius",
        "the 1st, 22nd": "the first, twenty-second",
    },
    "en-US": {"11/23/2026, 03/04/2026": "November twenty-third, twenty twenty-six, March fourth, twenty twenty-six"},
    "en-GB": {"03/04/2026 5 km": "third April twenty twenty-six five kilometres"},
    "de": {
        "Am 23.11.2026 um 14:30 Uhr": "Am 23. November 2026 um vierzehn Uhr dreißig",
        "1.234 Bienen, 3,14": "eintausendzweihundertvierunddreißig Bienen, drei Komma eins vier",
        "3,50 EUR, 12,00 €": "drei Euro fünfzig, zwölf Euro",
        "1 %, 60 km/h": "ein Prozent, sechzig Kilometer pro Stunde",
    },
    "de-CH": {"1’234 Bienen, 3.14": "eintausendzweihundertvierunddreißig Bienen, drei Komma eins vier"},
    "fr": {
        "Le 01/11/2026 à 14h30": "Le premier novembre deux mille vingt-six à quatorze heures trente",
        "21 h": "vingt-et-une heures",
        "21 €, 3,50 €, 1\u202f234 amis": "vingt-et-un euros, trois euros cinquante, mille deux cent trente-quatre amis",
        "1re, 2e": "première, deuxième",
    },
    "es": {
        "23/11/2026": "veintitrés de noviembre de dos mil veintiséis",
        "21 €, 3,50 €, 50 %": "veintiún euros, tres euros con cincuenta, cincuenta por ciento",
        "1.234,5 o 20 casas": "mil doscientos treinta y cuatro coma cinco o veinte casas",
    },
    "es-MX": {"1,234.5": "mil doscientos treinta y cuatro coma cinco"},
    "it": {"1/11/2026: 1 km, 3,50 €": "primo novembre duemilaventisei: un chilometro, tre euro e cinquanta"},
    "pt-BR": {"200 km, 2 €": "duzentos quilômetros, dois euros"},
    "nl": {"23-11-2026 om 14:30 uur": "drieëntwintig november tweeduizend zesentwintig om veertien uur dertig"},
}
KEPT = {
    "en": [
        "in 1984, 1500 ants, Berlin 10115",
        "+49 30 123456, (555) 123-4567, 555 1234, 911, 007",
        "v1.2.3, 1.2.3, 10.0.0.1, 2026-13-45, 25:61",
        "24/7, 1/2, 5-10, 3-year, B2, 5G, #5, COVID-19, 10^400, 1e9, 5½, x=3",
        "NaN, ٣, IV, ², ①, 1,50, " + "9" * 400,
        "5 m, 5 MB, 5 in, US$5, $5 bill, ¥5, 13:00 p.m.",
        "03/04/2026, 11.23.2026, May 5, 23 November, at 12.30",
    ],
    "de": ["1 Haus, 101 Tage, am 3. Mai, der 2. Weltkrieg, 14:30, 1 €, 0,50 €, $5 Millionen"],
    "fr": ["21 maisons, 1 maison, £5, 1.000.000 €, 01 23 45 67 89"],
    "es": ["1 casa, 21 casas, 200 casas, 1.000.000 €, £5"],
    "it": ["1 casa, £5, 1º"],
    "pt": ["1 casa, 2 casas, 200 casas, 2.000 casas"],
    "zh": ["2026年11月23日14:30，50%，3.5元"],
    "ru": ["50%, 5 домов, 23.11.2026"],
    "xx": ["5"],
    "": ["5"],
}
LANGUAGES = sorted(tag for tag in localedata.locale_identifiers() if knows(tag))
NUMBERS = ["0", "1", "05", "12", "21", "100", "1984", "999999999999", "2026-11-23", "23.11.2026", "^400", "NaN"]
SIGNS = [*".,:/-−%$€£()’٣½Ⅳ好", " ", "\xa0", "\u202f", "\n", "\ud800"]
UNITS = ["EUR", "USD ", "km/h", "°C", "kg", "th", "er", "re", "h", "am", "bn", "m", "a", " Uhr", " p.m.", " million"]
TEXTS = st.lists(st.sampled_from(NUMBERS + SIGNS + UNITS), max_size=20).map("".join)


@pytest.mark.parametrize("language", READ)
def test_what_is_understood_is_read(language):
    for written, words in READ[language].items():
        assert spoken_form(written, language) == words


@pytest.mark.parametrize("language", KEPT)
def test_what_is_not_certain_keeps_its_digits(language):
    """Numbers whose words depend on the gender of a noun keep them too, and languages without rules."""
    for written in KEPT[language]:
        assert spoken_form(written, language) == written


@given(TEXTS | st.text(), st.sampled_from([*LANGUAGES, "en-XX", "de-", "fr_FR.UTF-8", "zh", "", "\0"]))
@example("1" * 5000, "en")
@example("1,000" * 1000, "en")
def test_whatever_the_text_there_are_no_errors(text, language):
    result = spoken_form(text, language)
    if not any(char in "0123456789" for char in text):
        assert result == text


@given(st.integers(0, 999), st.sampled_from(["en", "de", "fr", "es", "it", "nl", "pt"]))
def test_every_number_is_read_as_one_number_or_kept(number, language):
    """The number stands in the middle of a sentence, with words that differ between numbers."""
    read = spoken_form(f"a {number} b", language)
    assert read == f"a {number} b" or read == f"a {NumberWords(language).cardinal(number)} b"
