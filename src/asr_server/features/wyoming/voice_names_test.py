"""Voices by name, as Wyoming clients list and send them."""

import pytest
from wyoming.tts import SynthesizeVoice

from asr_server.client.speech import SpeakingVoice
from asr_server.features.wyoming.voice_names import distinct, language_tags, speech_fields, voice_name


@pytest.mark.parametrize(
    ("voice", "fields"),
    [
        (SynthesizeVoice(), {"language": "fr"}),
        (SynthesizeVoice(name="nova"), {"voice": "nova", "language": "fr"}),
        (SynthesizeVoice(language="de"), {"language": "de"}),
        (SynthesizeVoice(name="nova@de", speaker="echo"), {"voice": "echo", "language": "de"}),
        (SynthesizeVoice(name=voice_name("uncle_fu", "pt-BR")), {"voice": "uncle_fu", "language": "pt-BR"}),
    ],
)
def test_what_is_not_stated_is_the_bridges_language_and_the_servers_voice(voice, fields):
    assert speech_fields(voice, "fr") == fields
    assert speech_fields(None, "") == {}  # the script of the text decides


def test_languages_are_tags_and_come_once():
    assert language_tags(("cmn", "zh", "en", "en-gb", "qya", "pt-br")) == ("zh", "en", "en-GB", "pt-BR")


def test_a_voice_with_a_name_of_openai_is_not_offered_twice():
    voices = [
        SpeakingVoice("alloy", "a man", ("en",), "m3"),
        SpeakingVoice("m3", "a man", ("en",)),
        SpeakingVoice("m5", "a man, rough", ("en",)),
    ]
    assert [voice.id for voice in distinct(tuple(voices))] == ["alloy", "m5"]
