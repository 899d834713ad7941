"""Requests as the engine gets them: voices, languages and sentences."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.conftest import raises
from asr_server.core.errors import UnsupportedLanguage
from asr_server.core.settings import SpeechSettings
from asr_server.features.speech_output.engines.protocol import Voice, VoiceSample
from asr_server.features.speech_output.requests import SpeechRequest
from asr_server.features.speech_output.script import ArrivingText, SpeechEngines, language_of, spoken_s
from asr_server.features.speech_output.synthesis import SpeechProcessor
from asr_server.text.sentences import sentences
from asr_server_fake.speech import FakeSpeechEngine


@pytest.mark.parametrize(
    ("text", "default", "expected"),
    [
        ("你好，世界", "xx", "zh"),
        ("今日は東京です", "xx", "ja"),
        ("カタカナ", "xx", "ja"),
        ("안녕하세요", "xx", "ko"),
        ("Привет, мир", "xx", "ru"),
        ("Καλημέρα", "xx", "el"),
        ("नमस्ते", "xx", "hi"),
        ("مرحبا", "xx", "ar"),
        ("שלום", "xx", "he"),
        ("สวัสดี", "xx", "th"),
        ("გამარჯობა", "xx", "ka"),
        ("বাংলা", "xx", "bn"),
        ("打开WiFi", "xx", "zh"),
        ("He met 田中 in the station.", "xx", "xx"),
        ("Grüße aus Łódź", "xx", "xx"),
        ("123 ؟ । 。 😀", "xx", "xx"),
        ("", "xx", "xx"),
        # Several languages share a script: a default that is written so stays.
        *((text, code, code) for text, code in (("東京", "ja"), ("你好", "zh-TW"), ("你好", "yue"), ("Привіт", "uk"))),
        *((text, code, code) for text, code in (("سلام", "fa-IR"), ("नमस्कार", "mr"))),
        # Kana are Japanese, whatever the default; without them Korean does not stay.
        ("東京都庁へ行く", "zh", "ja"),
        ("東京都庁", "ko", "zh"),
    ],
)
def test_a_script_names_its_language(text, default, expected):
    """The script of most letters decides. Latin letters, digits and punctuation say nothing."""
    assert language_of(text, default) == expected


@given(st.text())
def test_whatever_the_text_there_is_a_language(text):
    """A code or the default, and the default for text in ASCII."""
    assert language_of(text, "xx").isalpha()
    assert language_of(text.encode("ascii", "ignore").decode(), "xx") == "xx"


@pytest.mark.parametrize(
    ("text", "least_s", "most_s"),
    [
        ("", 0, 0),
        # eSpeak NG takes 3.0 s and 4.5 s (voice m3).
        ("The quick brown fox jumps over the lazy dog near the river.", 3, 5),
        ("今天天气很好，我们一起去公园散步吧。", 3, 5),
    ],
)
def test_estimates_are_near_what_is_spoken(text, least_s, most_s):
    """In letters, and in characters that are syllables."""
    assert least_s <= spoken_s(text) <= most_s


SETTINGS = SpeechSettings(max_speech_chars=200)
REQUEST = SpeechRequest(input="Dr. Smith has 2 dogs. They bark!")
SAMPLE = VoiceSample(np.zeros(24_000, np.float32), "", "digest")


def client(**changes):
    return SimpleNamespace(traits=replace(FakeSpeechEngine.traits, **changes), model_id="scripted")


def prepared(engines=None, settings=SETTINGS, sample=None, **fields):
    request = SpeechRequest(**{**REQUEST.model_dump(), **fields})
    processor = SpeechProcessor(engines or SpeechEngines((client(),)), None, None, settings, 1.0)
    return processor.prepare(request, sample=sample)


def rows(made):
    """The sentences as the engine gets them."""
    return [made.how.row(span.text) for span in made.spans]


def seconds(made):
    return sum(made.how.seconds(span.text) for span in made.spans)


def test_sentences_have_their_places_in_the_text_and_numbers_in_words():
    """The reader sees what was written; the engine gets what is said."""
    made = prepared()
    assert [REQUEST.input[span.start : span.end] for span in made.spans] == ["Dr. Smith has 2 dogs.", "They bark!"]
    assert [row.text for row in rows(made)] == ["Dr. Smith has two dogs.", "They bark!"]
    assert [row.text for row in rows(prepared(spell_out=False))] == [span.text for span in made.spans]
    assert made.characters == len(REQUEST.input)


@pytest.mark.parametrize(
    ("voice", "expected"),
    [("alloy", "low"), ("ALLOY ", "low"), ("high", "high"), ("echo", "high"), ("af_heart", "low"), ("default", "low")],
)
def test_voices_by_either_name(voice, expected):
    """OpenAI's, and the engine's own, however they are written; names of Kokoro's voices mean the default."""
    names = {"alloy": "low", "echo": "high"}
    made = prepared(SpeechEngines((client(openai_voices=names),)), voice=voice)
    assert {row.voice for row in rows(made)} == {expected}


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [("Hello.", None, "en"), ("你好。", None, "zh"), ("Bonjour.", "fr-CA", "fr"), ("Hallo.", "German", "de")],
)
def test_the_language_is_that_of_the_request_or_of_the_script(text, language, expected):
    """A dialect that the engine does not know is its language."""
    assert rows(prepared(input=text, language=language))[0].language == expected


def test_the_first_engine_that_has_the_voice_and_speaks_the_language_speaks():
    """A name of OpenAI is a voice of each engine, and a name that one engine has is that engine's alone."""
    french = Voice("marie", "a voice", ("fr",))
    first = client(voices=(french,), openai_voices={"alloy": "marie"}, languages=("fr", "fr-fr"))
    both = SpeechEngines((first, client(openai_voices={"alloy": "low"})))
    for fields, voice, language in (
        ({"language": "fr"}, "marie", "fr"),
        ({"language": "fr-CA"}, "marie", "fr"),
        ({"language": "fr-FR"}, "marie", "fr-fr"),
        ({}, "low", "en"),
        ({"language": "fr", "voice": "high"}, "high", "fr"),
        ({"language": "fr", "voice": "Marie"}, "marie", "fr"),
    ):
        made = prepared(both, **{"voice": "alloy"} | fields)
        assert made.how.client is both.named[voice != "marie"]
        assert (rows(made)[0].voice, rows(made)[0].language) == (voice, language)
    with pytest.raises(UnsupportedLanguage, match=r"They speak: fr, fr-fr\."):
        prepared(both, voice="marie", language="de")
    with raises("invalid_value", match=r"There are: alloy, marie, high, low, middle\."):
        prepared(both, voice="nobody")


def test_the_speed_is_the_engines_where_it_can_change_it():
    """Its audio is then left as it is; pauses are shorter and longer as by the encoder."""
    able = SpeechEngines((client(changes_speed=True),))
    made = prepared(able, speed=0.5, pause_ms=10_000)
    assert {row.speed for row in rows(made)} == {0.5}
    assert (made.how.encoding.speed, made.how.encoding.pause_ms) == (1.0, 20_000)
    assert seconds(made) == seconds(prepared(speed=0.5)) == pytest.approx(2 * seconds(prepared()))
    other = prepared(speed=0.5)
    assert {row.speed for row in rows(other)} == {1.0}
    assert (other.how.encoding.speed, other.how.encoding.pause_ms) == (0.5, 250)


def test_a_sample_goes_to_the_engine_that_imitates():
    """Without a name of a voice. Where there is none, that is an error."""
    other = client()
    made = prepared(SpeechEngines((client(),), other), sample=SAMPLE)
    assert made.how.client is other
    assert (rows(made)[0].voice, rows(made)[0].sample) == ("", SAMPLE)
    with raises("speech_unavailable"):
        prepared(sample=SAMPLE)


def test_what_the_engine_has_no_use_for_is_reported_and_not_given_to_it():
    """Instructions, which some engines follow."""
    deaf = SpeechEngines((client(follows_instructions=False),))
    made = prepared(deaf, instructions="Whisper.")
    assert made.how.ignored == ("instructions",)
    assert rows(made)[0].instructions == ""
    assert prepared(instructions="Whisper.").how.ignored == ()


GERMAN = "Am 3. Mai kam er z. B. um 4 Uhr. Das war spät! »Ach so?« Ja … 3. Wahl: nichts\n\n- eins\n- zwei\nund Schluss"
ARRIVING = [
    GERMAN,
    "Dr. Smith called at 3 p.m. to confirm. He did.",
    "",
    " \n ",
    "--- * ---",
    "今日は。元気ですか？はい",
    "x" * 900,
]


def _in_pieces(arriving, text, rng):
    found = []
    while text:
        size = rng.choice([1, 2, 3, 10, 1_000])
        found += arriving.push(text[:size])
        text = text[size:]
    return found + arriving.end()


@pytest.mark.parametrize("text", ARRIVING)
@pytest.mark.parametrize("stated", ["de", None])
def test_a_text_in_any_pieces_has_the_sentences_of_the_whole(text, stated):
    """Also where its language is decided by its first sentence, and in a second text over the same session."""
    rng = random.Random(1)
    arriving = ArrivingText(stated, "en", lambda first: "de")
    whole = [span.text for span in sentences(text, "de")]
    for _ in range(20):
        assert _in_pieces(arriving, text, rng) == whole
        assert arriving.waiting_characters == 0


def test_the_first_sentence_decides_the_language_of_each_text():
    """The end of a text is the end of what was decided; its first sentence is the same in any pieces."""
    asked = []
    arriving = ArrivingText(None, "en", lambda first: asked.append(first) or f"l{len(asked)}")
    assert [arriving.push(piece) for piece in ("One", ". T", "wo")] == [[], ["One."], []]
    assert arriving.end() == ["Two"]
    assert arriving.push("Three. F") == ["Three."]
    arriving.clear()
    assert arriving.end() == []
    assert arriving.push("Five. S") == ["Five."]
    assert asked == ["One.", "Three.", "Five."]


@pytest.mark.parametrize("stated", ["en", None])
def test_what_waits_is_counted(stated):
    """Until its sentence is certain."""
    arriving = ArrivingText(stated, "en", lambda first: "en")
    arriving.push("Half of ")
    arriving.push("it")
    assert arriving.waiting_characters == 10
    arriving.push(". Next")
    assert arriving.waiting_characters == 4
