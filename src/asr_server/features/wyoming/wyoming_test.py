"""The bridge's answer to a `transcribe` event. Its connections are tested from outside."""

from dataclasses import replace

from wyoming.asr import Transcribe
from wyoming.info import Info

from asr_server.client.speech import SpeakingVoice
from asr_server.features.wyoming.wyoming import BridgeTarget, ServerState, info
from asr_server.recordings.requests import MAX_TEXT_CHARS

TARGET = BridgeTarget("http://127.0.0.1:8100", language="de")


def test_a_house_with_too_many_names_keeps_its_first_ones():
    """The bridge keeps as many as the server takes, in their order: the client's names, its terms, those of the
    home. A refusal would cost every command."""
    lamps, terms = [f"lamp {number:04}" for number in range(2_000)], ["Zürich"]
    target = replace(TARGET, names=lambda: ("Kitchen", "zürich"))

    def kept(names):
        return target.options(Transcribe(transcript_names=names, transcript_terms=terms)).hotwords

    many = kept(lamps)
    assert many == tuple(lamps[: len(many)])
    assert MAX_TEXT_CHARS - 50 < len(", ".join(many)) <= MAX_TEXT_CHARS
    assert kept(lamps[:1]) == ("lamp 0000", "Zürich", "Kitchen")


def test_the_language_of_the_bridge_is_heard_if_an_event_has_none():
    assert TARGET.options(Transcribe()).language == "de"


def test_a_recogniser_that_failed_does_not_silence_the_server():
    voices = (SpeakingVoice("eric", "a man", ("en",)),)
    described = Info.from_event(info(ServerState("The model of the server cannot be loaded: no.", ("en",), voices)))
    assert described.tts[0].installed
    assert not described.asr[0].installed
