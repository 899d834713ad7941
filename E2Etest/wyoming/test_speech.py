"""What a Wyoming client finds that wants to hear something."""

import asyncio

import pytest
from wyoming.audio import AudioChunk
from wyoming.info import Describe, Info
from wyoming.ping import Ping
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from E2Etest import recordings
from E2Etest.live.session import data
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


async def test_voice_and_language_change_the_audio(port):
    """By the name alone, as Home Assistant sends it."""
    names = [None, "nova@en-US", "echo@en-US", "nova@de", "f1"]
    async with connected(port) as client:
        answers = [
            (await spoken(client, Synthesize(text="Wagen.", voice=SynthesizeVoice(name=name))))[1] for name in names
        ]
    assert len(set(answers)) == len(names)


async def test_texts_are_spoken_in_the_order_in_which_they_came(port):
    """Nobody has to wait for an answer before the next question."""
    texts = ["One.", "Two is more.", "Three."]
    async with connected(port) as client:
        alone = [await spoken(client, Synthesize(text=text)) for text in texts]
        for text in texts:
            await client.write_event(Synthesize(text=text).event())
        assert [await spoken(client) for _ in texts] == alone


async def test_other_events_are_answered_while_it_speaks(port):
    """Between the chunks of audio."""
    async with connected(port) as client:
        kinds, _ = await spoken(client, Synthesize(text=_LONG), Ping(text="here"), last="pong")
    assert "audio-stop" not in kinds


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"text": "a", "voice": SynthesizeVoice(name="nobody")}, "invalid_value"),
        ({"text": "a", "voice": SynthesizeVoice(name="nova@xx")}, "unsupported_language"),
        ({"text": "a", "voice": SynthesizeVoice(language="!")}, "invalid_language_format"),
        ({"text": ""}, "missing_required_parameter"),
        ({"text": "a\0b"}, "invalid_value"),
        ({"text": "word " * 5_000}, "string_above_max_length"),
    ],
)
async def test_an_error_ends_the_answer_and_not_the_connection(port, asked, code):
    """With the server's code; the same connection then speaks and listens."""
    async with connected(port) as client:
        await client.write_event(Synthesize(**asked).event())
        error = await client.read_event()
        assert (error.type, error.data["code"]) == ("error", code)
        assert (await client.read_event()).type == "audio-stop"
        assert (await spoken(client, Synthesize(text="Yes.")))[0] == _WHOLE


async def test_who_leaves_in_the_middle_frees_the_server(port, wyoming_server):
    """The request is cancelled there."""
    before = wyoming_server.log().count("outcome=request_cancelled")
    async with connected(port) as client:
        await client.write_event(Synthesize(text=_LONG).event())
        assert (await client.read_event()).type == "audio-start"
        assert AudioChunk.is_type((await client.read_event()).type)
    for _ in range(300):
        if wyoming_server.log().count("outcome=request_cancelled") > before:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the request goes on")


async def test_many_clients_at_once(port):
    """Eight, each with its own text."""

    async def answer(number):
        async with connected(port) as client:
            return (await spoken(client, Synthesize(text=f"This is number {number}.")))[1]

    alone = [await answer(number) for number in range(8)]
    assert await asyncio.gather(*(answer(number) for number in range(8))) == alone
    assert len(set(alone)) == 8


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
