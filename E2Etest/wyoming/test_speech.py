"""What a Wyoming client finds that wants to hear something."""

import pytest
from wyoming.info import Describe, Info
from wyoming.ping import Ping
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from E2Etest.drive import recordings
from E2Etest.drive.session import data
from E2Etest.wyoming.client import connected, heard, spoken
from E2Etest.wyoming.conftest import bridged

pytestmark = pytest.mark.integration

_TEXT = "Dr. Smith has three lamps. Are they on? Yes!"
# About five minutes of audio: takes a second or more, and leaves room for others.
_LONG = "There are many words in this text. " * 120
_WHOLE = ["audio-start", "audio-chunk", "audio-stop"]


async def _described(port):
    async with connected(port) as client:
        await client.write_event(Describe().event())
        return Info.from_event(await client.read_event())


async def test_describe_lists_voices_as_home_assistant_wants_them(port):
    """Each of one language, of which some are dialects, with names that OpenAI's clients know too."""
    (program,) = (await _described(port)).tts
    assert program.installed
    assert program.supports_synthesize_streaming
    names = {voice.name for voice in program.voices}
    assert {"alloy@en", "alloy@de", "nova@pt-BR", "nova@en-GB"} <= names
    assert len(names) == len(program.voices)
    assert all(voice.installed and voice.languages == [voice.name.partition("@")[2]] for voice in program.voices)


async def test_a_text_in_pieces_is_the_same_audio_as_the_whole_text(port):
    """And so is what the route of the server answers."""
    pieces = [SynthesizeChunk(text=_TEXT[at : at + 7]) for at in range(0, len(_TEXT), 7)]
    async with connected(port) as client:
        kinds, whole = await spoken(client, Synthesize(text=_TEXT))
        assert kinds == _WHOLE
        kinds, streamed = await spoken(
            client,
            SynthesizeStart(),
            *pieces,
            Synthesize(text=_TEXT),
            SynthesizeStop(),
            last="synthesize-stopped",
        )
    assert kinds == [*_WHOLE, "synthesize-stopped"]
    assert streamed == whole
    assert len(whole) > 2 * 24_000 * 2


async def test_other_events_are_answered_while_it_speaks(port):
    """Between the chunks of audio."""
    async with connected(port) as client:
        kinds, _ = await spoken(client, Synthesize(text=_LONG), Ping(text="here"), last="pong")
    assert "audio-stop" not in kinds


@pytest.mark.nightly
async def test_a_silent_server_still_listens(start):
    """No program that speaks is described; a text is an error."""
    with start(SPEECH="off") as server, bridged(server.base) as port:
        described = await _described(port)
        assert described.tts == []
        assert described.asr[0].installed
        async with connected(port) as client:
            await client.write_event(Synthesize(text="a").event())
            assert (await client.read_event()).data["code"] == "speech_unavailable"
        assert (await heard(port, data(recordings.samples()), language="en")).text == recordings.sample()[1]


@pytest.mark.nightly
async def test_a_server_with_keys_speaks_with_the_key_alone(start, tmp_path):
    """The bridge has one, or says that it is missing."""
    with start(API_KEYS="sk-of-the-server") as server:
        file = tmp_path / "key"
        file.write_text(server.key)
        with bridged(server.base, "--api-key-file", file) as port:
            assert len((await _described(port)).tts) == 1
            async with connected(port) as client:
                assert (await spoken(client, Synthesize(text="Yes.")))[0] == _WHOLE
        with bridged(server.base) as port:
            assert (await _described(port)).tts == []
            async with connected(port) as client:
                await client.write_event(Synthesize(text="a").event())
                assert (await client.read_event()).data["code"] == "missing_api_key"


async def test_the_bridges_language_is_spoken_where_none_is_stated(wyoming_server):
    """As it is heard."""
    with bridged(wyoming_server.base, "--language", "de") as port:
        async with connected(port) as client:
            german = await spoken(client, Synthesize(text="Wagen.", voice=SynthesizeVoice(name="nova@de")))
            assert await spoken(client, Synthesize(text="Wagen.", voice=SynthesizeVoice(name="nova"))) == german
