"""The voices that a server names."""

from asr_server.features.speech_output.engines.protocol import SpeechTraits, Voice
from asr_server.features.speech_output.route import voice_list

PERSON = SpeechTraits(
    (Voice("joe", "a man", licence="CC0"),), openai_voices={"alloy": "joe", "nova": "joe"}, languages=("en",)
)
ROBOT = SpeechTraits(
    (Voice("m1", "a robot"), Voice("f1", "another", languages=("de",))),
    openai_voices={"alloy": "m1", "echo": "f1"},
    languages=("en", "de", "fr"),
)


def test_openais_names_come_first_and_stand_for_the_voices_of_the_engines_in_their_order():
    """A name has the languages of all its voices; the first engine that has it is the one that is used."""
    listed = voice_list([PERSON, ROBOT])
    assert [voice.id for voice in listed.data] == ["alloy", "echo", "nova", "joe", "m1", "f1"]
    alloy, echo, nova, joe, _, f1 = listed.data
    assert (alloy.alias_of, alloy.also_alias_of, alloy.languages) == ("joe", ["m1"], ["en", "de", "fr"])
    assert (echo.alias_of, echo.also_alias_of, echo.languages) == ("f1", [], ["de"])
    assert (nova.name, nova.description, nova.licence, nova.languages) == ("nova", "a man", "CC0", ["en"])
    assert (joe.alias_of, joe.name, f1.licence) == (None, "joe", None)
    assert listed.voices == listed.data
    assert voice_list([ROBOT, PERSON]).data[0].alias_of == "m1"
