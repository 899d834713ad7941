"""Requests as the engine gets them: voices, languages and sentences."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.settings import SpeechSettings
from asr_server.features.speech_output.engines.protocol import Voice
from asr_server.features.speech_output.requests import SpeechRequest
from asr_server.features.speech_output.script import ArrivingText, SpeechEngines, language_of
from asr_server.features.speech_output.synthesis import SpeechProcessor
from asr_server.text.sentences import sentences
from asr_server_fake.speech import FakeSpeechEngine


@pytest.mark.parametrize(
    ("text", "default", "expected"),
    [
        *((text, "xx", code) for text, code in (("今日は東京です", "ja"), ("안녕하세요", "ko"), ("Привет, мир", "ru"))),
        *((text, "xx", code) for text, code in (("नमस्ते", "hi"), ("مرحبا", "ar"), ("打开WiFi", "zh"))),
        *((text, "xx", "xx") for text in ("He met 田中 in the station.", "Grüße aus Łódź", "123 ؟ । 。 😀", "")),
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


REQUEST = SpeechRequest(input="Dr. Smith has 2 dogs. They bark!")


def client(**changes):
    return SimpleNamespace(traits=replace(FakeSpeechEngine.traits, **changes), model_id="scripted")


def prepared(*clients, **fields):
    """The script of a request, and its first sentence as the engine gets it."""
    request = SpeechRequest(**{**REQUEST.model_dump(), **fields})
    engines = SpeechEngines(clients or (client(),))
    made = SpeechProcessor(engines, None, None, SpeechSettings(max_speech_chars=200), 1.0).prepare(request)
    return made, made.how.row(made.spans[0].text)


def test_sentences_have_their_places_in_the_text_and_numbers_in_words():
    made, first = prepared()
    assert [REQUEST.input[span.start : span.end] for span in made.spans] == ["Dr. Smith has 2 dogs.", "They bark!"]
    assert first.text == "Dr. Smith has two dogs."
    assert prepared(spell_out=False)[1].text == made.spans[0].text
    assert made.characters == len(REQUEST.input)


MARIE = Voice("marie", "a voice", ("fr",))
FRENCH = client(voices=(MARIE,), openai_voices={"alloy": "marie"}, languages=("fr", "fr-fr"))
BOTH = FRENCH, client(openai_voices={"alloy": "low", "echo": "high"})


@pytest.mark.parametrize(
    ("fields", "voice", "language"),
    [
        ({}, "low", "en"),
        ({"input": "你好。"}, "low", "zh"),
        ({"language": "German"}, "low", "de"),
        ({"language": "fr"}, "marie", "fr"),
        ({"language": "fr-CA"}, "marie", "fr"),
        ({"language": "fr-FR"}, "marie", "fr-fr"),
        ({"language": "fr", "voice": "high"}, "high", "fr"),
        ({"voice": "ECHO "}, "high", "en"),
        ({"voice": "af_heart"}, "low", "en"),
        ({"voice": "default"}, "low", "en"),
    ],
)
def test_the_first_engine_that_has_the_voice_and_speaks_the_language_speaks(fields, voice, language):
    """However the voice is written; Kokoro's mean the default. An unknown dialect is its language."""
    made, first = prepared(*BOTH, **fields)
    assert made.how.client is BOTH[voice != "marie"]
    assert (first.voice, first.language) == (voice, language)


def test_the_speed_is_the_engines_where_it_can_change_it():
    """Its audio is then left as it is; pauses are shorter and longer as by the encoder."""
    (able, fast), (other, usual) = (
        prepared(client(changes_speed=changes), speed=0.5, pause_ms=10_000) for changes in (True, False)
    )
    assert (fast.speed, able.how.encoding.speed, able.how.encoding.pause_ms) == (0.5, 1.0, 20_000)
    assert (usual.speed, other.how.encoding.speed, other.how.encoding.pause_ms) == (1.0, 0.5, 10_000)
    assert able.how.seconds("a") == other.how.seconds("a") == 2 * prepared()[0].how.seconds("a")


def test_what_the_engine_has_no_use_for_is_reported_and_not_given_to_it():
    for follows, ignored, used in ((False, ("instructions",), ""), (True, (), "Whisper.")):
        made, first = prepared(client(follows_instructions=follows), instructions="Whisper.")
        assert (made.how.ignored, first.instructions) == (ignored, used)


GERMAN = "Am 3. Mai kam er z. B. um 4 Uhr. Das war spät! »Ach so?« Ja … 3. Wahl: nichts\n\n- eins\n- zwei\nund Schluss"
ARRIVING = [GERMAN, "Dr. Smith called at 3 p.m. He did.", " \n ", "--- * ---", "今日は。元気ですか？はい", "x" * 900]


@pytest.mark.parametrize("text", ARRIVING)
def test_a_text_in_any_pieces_has_the_sentences_of_the_whole(text):
    """Also where its language is decided by its first sentence, and in a second text over the same session."""
    rng = random.Random(1)
    arriving = ArrivingText("en", lambda first: "de")
    for _ in range(20):
        found, rest = [], text
        while rest:
            size = rng.choice([1, 2, 3, 10, 1_000])
            found += arriving.push(rest[:size])
            rest = rest[size:]
        assert found + arriving.end() == [span.text for span in sentences(text, "de")]
        assert arriving.waiting_characters == 0


def test_the_first_sentence_decides_the_language_of_each_text():
    """The end of a text is the end of what was decided; its first sentence is the same in any pieces. What waits is
    counted, before its language is known too."""
    asked = []
    arriving = ArrivingText("en", lambda first: asked.append(first) or f"l{len(asked)}")
    assert [arriving.push(piece) for piece in ("O", "ne", ". T", "wo")] == [[], [], ["One."], []]
    assert arriving.waiting_characters == 3
    assert arriving.end() == ["Two"]
    assert arriving.push("Three") == []
    assert arriving.waiting_characters == 5
    assert arriving.push(". F") == ["Three."]
    arriving.clear()
    assert arriving.end() == []
    assert arriving.push("Five. S") == ["Five."]
    assert asked == ["One.", "Three.", "Five."]
