"""Numbers in digits, in each language with its signs, and what stays in words."""

import pytest

from asr_server.features.rewriting import number_words
from asr_server.features.rewriting.edits import edited
from asr_server.features.rewriting.written_form import written_edits
from asr_server.features.speech_output.spoken_form import NumberWords

NBSP = "\xa0"
WRITTEN = {
    "en": {
        "twenty five dollars and fifty cents": "$25.50",
        "a hundred dollars, or one pound": "$100, or £1",
        "three point one four percent": "3.14%",
        "three kilometers per hour, two kilometres": f"3{NBSP}km/h, 2{NBSP}km",
        "at eleven thirty pm and three o'clock": "at 11:30 pm and 3 o'clock",
        "in nineteen eighty four and in nineteen oh four": "in 1984 and in 1904",
        "the first of March two thousand and three": "the 1st of March 2003",
        "March third, nineteen eighty four": "March 3rd, 1984",
        "five five five zero one": "55501",
        "a hundred and five of the twenty-first century": "105 of the 21st century",
    },
    "de": {
        "fünfundzwanzig Euro und fünfzig Cent": f"25,50{NBSP}€",
        "um zehn Uhr dreißig, um zwei Uhr": "um 10:30 Uhr, um 2 Uhr",
        "am dritten März zweitausenddrei": "am 3. März 2003",
        "ein Prozent, drei Komma fünf Kilometer": f"1{NBSP}%, 3,5{NBSP}km",
    },
    "fr": {
        "vingt-cinq euros": f"25{NBSP}€",
        "à dix heures trente": f"à 10{NBSP}h{NBSP}30",
        "le premier mars": "le 1er mars",
    },
    "es": {"veinticinco euros con cincuenta céntimos": f"25,50{NBSP}€", "el dos de mayo": "el 2 de mayo"},
    "it": {"venticinque euro": f"25{NBSP}€"},
    "nl": {"vijfentwintig euro": f"€{NBSP}25", "om tien uur dertig": "om 10:30 uur"},
    "pt": {"três por cento": "3%"},
}


@pytest.mark.parametrize("language", WRITTEN)
def test_numbers_are_written_in_digits(language):
    assert {said: edited(said, written_edits(said, language)) for said in WRITTEN[language]} == WRITTEN[language]


def test_what_may_be_no_number_stays():
    """Small numbers that stand alone, words of a scale, and numbers that began in digits."""
    english = "one of us, the second: thanks a million to 25 thousand people"
    kept = ((english, "en"), ("ein Hund und zwei Katzen", "de"), ("un chien", "fr"))
    assert [written_edits(text, language) for text, language in kept] == [[], [], []]


@pytest.mark.parametrize("language", number_words.LANGUAGES)
def test_the_words_of_a_number_are_read_back(language):
    for number in (4, 17, 21, 99, 105, 1200, 45_678):
        words = NumberWords(language).cardinal(number)
        assert [found.value for found in number_words.found(words, language)] == [number], words
