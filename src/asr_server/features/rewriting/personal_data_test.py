"""Personal data by form and check digits, written and said; and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.features.rewriting.personal_data import find
from asr_server.recordings.requests import PersonalData

ALL = frozenset(PersonalData) - {PersonalData.NUMBER}


def _shown(text, language="en", kinds=ALL):
    shown, at = "", 0
    for one in find([(text, language)], kinds):
        shown += text[at : one.start] + f"[{one.kind}]"
        at = one.end
    return shown + text[at:]


@pytest.mark.parametrize(
    ("language", "text", "shown"),
    [
        ("en", "Mail John.Smith@example.co.uk, please.", "Mail [email], please."),
        ("en", "write to john dot smith at example dot com please", "write to [email] please"),
        ("en", "it is j o h n forty two at g mail dot com", "it is [email]"),
        ("de", "an max Punkt muster at beispiel Punkt de bitte", "an [email] bitte"),
        ("fr", "mon adresse est marie arobase exemple point fr", "mon adresse est [email]"),
        ("en", "host 192.168.0.1 and fe80::1", "host [ip] and [ip]"),
        ("en", "one hundred and ninety two point one sixty eight point zero point one", "[ip]"),
        ("en", "GB82 WEST 1234 5698 7654 32 is mine", "[iban] is mine"),
        (
            "de",
            "D E acht neun drei sieben null vier null null vier vier null fünf drei zwei null eins drei null null null",
            "[iban]",
        ),
        ("en", "card 4111 1111 1111 1111, thanks", "card [card], thanks"),
        ("en", "4111-1111-1111-1111 12 27 123 is all", "[card] is all"),
        ("en", "call (202) 555-0143 or +44 20 7946 0958.", "call [phone] or [phone]."),
        ("en", "double five five oh one two three four triple seven", "[phone]"),
        ("en", "my number is 555, 123, 4567", "my number is [phone]"),
        ("en", "call 202-555-0143 tomorrow at 1130 p.m.", "call [phone] tomorrow at 1130 p.m."),
        ("en", "it is 202-555-0143 at example.com", "it is [email]"),
        ("fr", "zéro six douze trente-quatre cinquante-six soixante-dix-huit", "[phone]"),
        ("zh", "电话是一三八一二三四五六七八", "电话是[phone]"),
        ("ar", "٠١٧١١٢٣٤٥٦٧", "[phone]"),
    ],
)
def test_personal_data_is_found(language, text, shown):
    assert _shown(text, language) == shown


def test_dates_amounts_and_other_words_are_left():
    text = "look at this point we had 25 people, meet at noon. Then on 2026-11-27 or 27.11.2026 and 10:30:00 were "
    text += "1,000,000 people for $1,234,567.89 in version 1.2.3 of 999.1.1.1 GB00 WEST 1234"
    assert _shown(text) == text


def test_only_the_kinds_that_are_asked_for_are_replaced():
    """A wrong check digit is no card; `number` takes three digits and more, in words too."""
    card, wrong = "4111 1111 1111 1111", "4111 1111 1111 1112"
    assert _shown(card, kinds={PersonalData.EMAIL}) == card
    assert [_shown(wrong, kinds={kind}) for kind in (PersonalData.CARD, PersonalData.PHONE)] == [wrong, "[phone]"]
    text = "pin 1234, code two hundred for 42"
    assert _shown(text, kinds={PersonalData.NUMBER}) == "pin [number], code [number] for 42"


@given(st.lists(st.sampled_from(["one", "double", "twenty", "4111", "@", "at", "dot", "de", ",", "零"]), max_size=30))
def test_parts_are_disjoint_and_in_order(words):
    """Places are those of the original text, whatever its digits are made of."""
    text = " ".join(words)
    found = find([(text[:20], "en"), (text[20:], "en")], frozenset(PersonalData))
    at = 0
    for one in found:
        assert at <= one.start < one.end <= len(text)
        at = one.end


def test_signs_are_read_in_each_language_of_a_recording():
    text = "hello schreib an max at beispiel Punkt de"
    (found,) = find([(text[:6], "en"), (text[6:], "de")], ALL)
    assert text[found.start : found.end] == "max at beispiel Punkt de"


def test_a_long_run_of_digits_is_masked():
    """More digits than are compared with the form of a card."""
    assert _shown("1 " * 1_000, "", {PersonalData.CARD}) == "[card] "


@pytest.mark.parametrize("part", ["(+(", "x@a.b.", "1.2.3.", "a at dot "])
def test_the_time_grows_with_the_length_alone(part):
    """A text that would take minutes in quadratic time, which is longer than the limit of a test."""
    find([(part * (150_000 // len(part)), "")], ALL)
