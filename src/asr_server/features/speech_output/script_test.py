"""Requests as the engine gets them: voices, languages, sentences, and the key of the answer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.errors import InvalidLanguage, InvalidValue, SpeechUnavailable, TextTooLong, UnsupportedLanguage
from asr_server.core.settings import SpeechSettings
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.fake import FakeSpeechEngine
from asr_server.features.speech_output.engines.protocol import Voice, VoiceSample
from asr_server.features.speech_output.requests import SpeechRequest
from asr_server.features.speech_output.script import SpeechEngines, language_of, prepare, spoken_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("你好，世界", "zh"),
        ("今日は東京です", "ja"),
        ("カタカナ", "ja"),
        ("안녕하세요", "ko"),
        ("Привет, мир", "ru"),
        ("Καλημέρα", "el"),
        ("नमस्ते", "hi"),
        ("مرحبا", "ar"),
        ("שלום", "he"),
        ("สวัสดี", "th"),
        ("გამარჯობა", "ka"),
        ("বাংলা", "bn"),
        ("打开WiFi", "zh"),
        ("He met 田中 in the station.", "xx"),
        ("Grüße aus Łódź", "xx"),
        ("123 ؟ । 。 😀", "xx"),
        ("", "xx"),
    ],
)
def test_a_script_names_its_language(text, expected):
    """The script of most letters decides. Latin letters, digits and punctuation say nothing."""
    assert language_of(text, "xx") == expected


@pytest.mark.parametrize(
    ("text", "default"),
    [("東京", "ja"), ("你好", "zh-TW"), ("你好", "yue"), ("Привіт", "uk"), ("سلام", "fa-IR"), ("नमस्कार", "mr")],
)
def test_the_default_stays_where_it_is_written_so(text, default):
    """Several languages share a script."""
    assert language_of(text, default) == default


def test_kana_decide_between_japanese_and_chinese():
    """Kana decide also against a default, which is of no use there."""
    assert language_of("東京都庁へ行く", "zh") == "ja"
    assert language_of("東京都庁", "ko") == "zh"


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
REQUEST = SpeechRequest(text="Dr. Smith has 2 dogs. They bark!")
SAMPLE = VoiceSample(np.zeros(24_000, np.float32), "", "digest")


def client(**changes):
    return SimpleNamespace(traits=replace(FakeSpeechEngine.traits, **changes), model_id="scripted")


def prepared(engines=None, **fields):
    return prepare(replace(REQUEST, **fields), engines or SpeechEngines((client(),)), SETTINGS)


def test_sentences_have_their_places_in_the_text_and_numbers_in_words():
    """The reader sees what was written; the engine gets what is said."""
    made = prepared()
    assert [REQUEST.text[span.start : span.end] for span in made.spans] == ["Dr. Smith has 2 dogs.", "They bark!"]
    assert [row.text for row in made.rows] == ["Dr. Smith has two dogs.", "They bark!"]
    assert [row.text for row in prepared(spell_out=False).rows] == [span.text for span in made.spans]
    assert made.characters == len(REQUEST.text)


@pytest.mark.parametrize(
    ("voice", "expected"),
    [("alloy", "low"), ("ALLOY ", "low"), ("high", "high"), ("echo", "high"), ("af_heart", "low"), ("default", "low")],
)
def test_voices_by_either_name(voice, expected):
    """OpenAI's, and the engine's own, however they are written; names of Kokoro's voices mean the default."""
    names = {"alloy": "low", "echo": "high"}
    made = prepared(SpeechEngines((client(openai_voices=names),)), voice=voice)
    assert {row.voice for row in made.rows} == {expected}


def test_an_unknown_voice_is_told_the_known_ones():
    with pytest.raises(InvalidValue, match=r"alloy.*high") as refused:
        prepared(voice="nobody")
    assert refused.value.param == "voice"
    assert "nobody" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [("Hello.", None, "en"), ("你好。", None, "zh"), ("Bonjour.", "fr-CA", "fr"), ("Hallo.", "German", "de")],
)
def test_the_language_is_that_of_the_request_or_of_the_script(text, language, expected):
    """A dialect that the engine does not know is its language."""
    assert prepared(text=text, language=language).rows[0].language == expected


def test_languages_that_the_engine_does_not_speak():
    """By name, and by the script of the text; and what is no language."""
    for fields in ({"language": "sw"}, {"text": "Привет."}):
        with pytest.raises(UnsupportedLanguage, match="de, en, fr"):
            prepared(**fields)
    with pytest.raises(InvalidLanguage):
        prepared(language="x!")


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
        assert made.client is both.named[voice != "marie"]
        assert (made.rows[0].voice, made.rows[0].language) == (voice, language)
    with pytest.raises(UnsupportedLanguage, match=r"They speak: fr, fr-fr\."):
        prepared(both, voice="marie", language="de")
    with pytest.raises(InvalidValue, match=r"There are: alloy, marie, high, low, middle\."):
        prepared(both, voice="nobody")


def test_the_speed_is_the_engines_where_it_can_change_it():
    """Its audio is then left as it is; pauses are shorter and longer as by the encoder."""
    able = SpeechEngines((client(changes_speed=True),))
    made = prepared(able, speed=0.5, pause_ms=10_000)
    assert {row.speed for row in made.rows} == {0.5}
    assert (made.encoding.speed, made.encoding.pause_ms) == (1.0, 20_000)
    assert made.duration_s == prepared(speed=0.5).duration_s == pytest.approx(2 * prepared().duration_s)
    other = prepared(speed=0.5)
    assert {row.speed for row in other.rows} == {1.0}
    assert (other.encoding.speed, other.encoding.pause_ms) == (0.5, 250)
    assert made.key != prepared(able, pause_ms=10_000).key


def test_texts_that_cannot_be_spoken():
    """Without a letter or a digit, and over the limit by one."""
    for text in ("...", "\N{GRINNING FACE}", "- - -"):
        with pytest.raises(InvalidValue):
            prepared(text=text)
    assert prepared(text="a" * 200).rows
    with pytest.raises(TextTooLong):
        prepared(text="a" * 201)


def test_a_sample_goes_to_the_engine_that_imitates():
    """Without a name of a voice. Where there is none, that is an error."""
    other = client()
    made = prepared(SpeechEngines((client(),), other), sample=SAMPLE)
    assert made.client is other
    assert (made.rows[0].voice, made.rows[0].sample) == ("", SAMPLE)
    with pytest.raises(SpeechUnavailable):
        prepared(sample=SAMPLE)


def test_the_key_depends_on_everything_that_is_heard():
    """Every field of the request by itself gives another key; a name of the model does not."""
    clone = SpeechEngines((client(),), client())
    keys = [
        prepared(clone).key,
        prepared(clone, text="They bark!").key,
        prepared(clone, text="Dr. Smith has 2 dogs.\n\nThey bark.").key,
        prepared(clone, voice="echo").key,
        prepared(clone, language="de").key,
        prepared(clone, format=SpeechFormat.PCM).key,
        prepared(clone, speed=1.5).key,
        prepared(clone, pause_ms=0).key,
        prepared(clone, instructions="Whisper.").key,
        prepared(clone, seed=1).key,
        prepared(clone, spell_out=False).key,
        prepared(clone, sample=SAMPLE).key,
        prepared(clone, sample=replace(SAMPLE, key="another")).key,
    ]
    assert len(set(keys)) == len(keys)
    assert prepared(clone, model="tts-1-hd").key == keys[0]
    quick = SpeechEngines((client(changes_speed=True),))  # where the engine itself speaks faster
    assert prepared(quick, speed=1.5, pause_ms=0).key != prepared(quick, pause_ms=0).key
    other = SimpleNamespace(traits=client().traits, model_id="another")
    assert prepared(SpeechEngines((other,))).key != keys[0]


def test_what_the_engine_has_no_use_for_is_reported_and_changes_no_key():
    """Instructions, which some engines follow."""
    deaf = SpeechEngines((client(follows_instructions=False),))
    made = prepared(deaf, instructions="Whisper.")
    assert made.ignored == ("instructions",)
    assert made.rows[0].instructions == ""
    assert made.key == prepared(deaf).key
    assert prepared(instructions="Whisper.").ignored == ()


def test_a_faster_text_is_shorter():
    """The estimate by which it is admitted."""
    assert prepared(speed=2.0).duration_s == pytest.approx(prepared().duration_s / 2)


def test_the_loudness_of_the_settings_is_the_encoders():
    """An answer that was kept at another loudness is another one."""
    settings = SpeechSettings(max_speech_chars=200, speech_loudness_lufs=-18.0)
    made = prepare(REQUEST, SpeechEngines((client(),)), settings)
    assert made.encoding.loudness_lufs == -18.0
    assert made.key != prepared().key
