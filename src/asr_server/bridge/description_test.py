"""The description of a server."""

from wyoming.info import Info

from asr_server.bridge.description import info
from asr_server.bridge.server_state import ServerState
from asr_server.client.speech import SpeakingVoice


def _described(state):
    return Info.from_event(info(state))


def test_a_silent_server_has_no_program_that_speaks():
    """The description keeps the program that hears."""
    described = _described(ServerState("", ("en",)))
    assert described.tts == []
    assert described.asr[0].installed


def test_every_voice_is_one_voice_for_each_of_its_languages():
    """Home Assistant offers the voices of the language that its user picked."""
    voices = (SpeakingVoice("vivian", "a woman", ("zh", "en")), SpeakingVoice("eric", "a man", ("en",)))
    (program,) = _described(ServerState("", ("en",), voices)).tts
    listed = {voice.name: voice.languages for voice in program.voices}
    assert listed == {"vivian@zh": ["zh"], "vivian@en": ["en"], "eric@en": ["en"]}
    assert program.supports_synthesize_streaming
    assert all(part.installed for part in (program, *program.voices))


def test_a_recogniser_that_failed_does_not_silence_the_server():
    """The two are different models."""
    voices = (SpeakingVoice("eric", "a man", ("en",)),)
    described = _described(ServerState("The model of the server cannot be loaded: no.", ("en",), voices))
    assert described.tts[0].installed
    assert not described.asr[0].installed
