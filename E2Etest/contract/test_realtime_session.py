"""The session: its first event, updates, errors, and the shapes of the client's own types."""

import asyncio
import json

import openai
import pytest

from asr_server.features.realtime import route
from E2Etest.drive import recordings
from E2Etest.realtime.session import COMPLETED, RATE, Talk, encoded, open_session, speech

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]

NOISE = {"type": "near_field"}


def test_the_first_event_comes_unasked(realtime_server):
    """With intent, with a model, with a model that is none of ours: a transcription session."""
    for options in (
        {},
        {"model": "whisper-1"},
        {"model": "gpt-realtime", "extra_query": {}},
        {"model": "undefined", "extra_query": {}},
    ):
        with open_session(realtime_server, **options) as talk:
            session = talk.hello.session
            assert session.type == "transcription"
            assert session.audio.input.format.rate == RATE
            assert session.audio.input.turn_detection.type == "server_vad"
            wanted = "whisper-1" if options.get("model") == "whisper-1" else "demo"
            assert session.audio.input.transcription.model == wanted


def test_an_update_changes_what_it_names_and_shows_the_whole(realtime_server):
    """All is echoed; the next update leaves the rest as it was; null clears."""
    with open_session(realtime_server) as talk:
        said = {"model": "whisper-1", "language": "en", "prompt": "Lights.", "keywords": ["kitchen"], "delay": "low"}
        session = talk.update(
            format={"type": "audio/pcm", "rate": RATE},
            transcription=said,
            turn_detection=None,
            noise_reduction=NOISE,
            include=["item.input_audio_transcription.logprobs"],
        )
        heard = session.audio.input
        assert heard.transcription.to_dict() == said
        assert (heard.turn_detection, heard.noise_reduction.to_dict()) == (None, NOISE)
        assert session.include == ["item.input_audio_transcription.logprobs"]
        heard = talk.update(transcription={"language": "de"}).audio.input
        assert heard.transcription.to_dict() == {**said, "language": "de"}
        assert (heard.turn_detection, heard.noise_reduction.to_dict()) == (None, NOISE)
        heard = talk.update(turn_detection={"type": "semantic_vad", "eagerness": "high"}).audio.input
        assert type(heard.turn_detection).__name__ == "SemanticVad"
        assert heard.turn_detection.eagerness == "high"
        vad = talk.update(turn_detection={"type": "server_vad", "silence_duration_ms": 200}).audio.input.turn_detection
        assert (vad.silence_duration_ms, vad.prefix_padding_ms, vad.threshold) == (200, 300, 0.5)
        heard = talk.update(noise_reduction=None, transcription=None).audio.input
        assert (heard.noise_reduction, heard.transcription) == (None, None)
        assert talk.update(transcription={"language": "en"}).audio.input.transcription.model == "demo"


def _update(**heard):
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}}


@pytest.mark.parametrize(
    ("sent", "code", "param"),
    [
        ("{", "invalid_event", None),
        ("[]", "invalid_event", None),
        ("[" * 50_000, "invalid_event", None),
        ({}, "invalid_event", "type"),
        ({"type": 7}, "invalid_event", "type"),
        ({"type": "dance"}, "invalid_value", "type"),
        ({"type": "response.create"}, "unsupported_value", "type"),
        ({"type": "conversation.item.create", "item": {}}, "unsupported_value", "type"),
        ({"type": "session.update"}, "missing_required_parameter", "session"),
        ({"type": "session.update", "session": "x"}, "invalid_type", "session"),
        ({"type": "session.update", "session": {"type": "\ud800"}}, "invalid_value", "session"),
        ({"type": "session.update", "session": {"type": "dance"}}, "invalid_value", "session.type"),
        (
            {"type": "session.update", "session": {"type": "transcription", "input_audio_format": "pcm16"}},
            "unknown_parameter",
            "session.input_audio_format",
        ),
        (_update(format="pcm16"), "invalid_type", "session.audio.input.format"),
        (_update(format={"rate": 11_025}), "invalid_value", "session.audio.input.format"),
        (_update(colour=1), "unknown_parameter", "session.audio.input.colour"),
        (
            _update(turn_detection={"type": "server_vad", "mood": 1}),
            "unknown_parameter",
            "session.audio.input.turn_detection.mood",
        ),
        (
            _update(turn_detection={"type": "server_vad", "threshold": 2}),
            "invalid_value",
            "session.audio.input.turn_detection.threshold",
        ),
        (_update(turn_detection={"type": "psychic"}), "invalid_value", "session.audio.input.turn_detection.type"),
        (_update(transcription={"model": "gpt-9"}), "model_not_found", "session.audio.input.transcription.model"),
        (
            _update(transcription={"language": "tlh"}),
            "unsupported_language",
            "session.audio.input.transcription.language",
        ),
        ({"type": "input_audio_buffer.append"}, "missing_required_parameter", "audio"),
        ({"type": "input_audio_buffer.append", "audio": 5}, "invalid_type", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "@@@@"}, "invalid_value", "audio"),
        pytest.param(
            {"type": "input_audio_buffer.append", "audio": encoded(bytes(16 << 20))},
            "invalid_value",
            "audio",
            marks=pytest.mark.uvicorn,
        ),
        ({"type": "conversation.item.retrieve", "item_id": "item_0"}, "item_not_found", "item_id"),
        ({"type": "conversation.item.delete", "item_id": "item_0"}, "item_not_found", "item_id"),
    ],
)
def test_what_is_wrong_is_reported_and_the_session_goes_on(realtime_server, sent, code, param):
    """The error names the event at fault; the configuration is as before, and the socket is open."""
    with open_session(realtime_server) as talk:
        event_id = None
        if isinstance(sent, dict):
            event_id = "evt_7"
            sent = json.dumps({**sent, "event_id": event_id})
        talk.send_raw(sent)
        error = talk.only("error").error
        assert (error.code, error.param, error.event_id) == (code, param, event_id)
        assert error.type == "invalid_request_error"
        session = talk.update()
        assert session.audio == talk.hello.session.audio


def test_binary_json_is_json_too(realtime_server):
    """A frame may be binary."""
    with open_session(realtime_server) as talk:
        talk.send_raw(json.dumps(_update(noise_reduction=NOISE)).encode())
        assert talk.only("session.updated").session.audio.input.noise_reduction.type == "near_field"


async def test_the_async_client_loses_nothing_when_it_stops_waiting(realtime_server, said):
    """`recv` given up and called again gets the next event; a turn has its words."""
    async with (
        openai.AsyncOpenAI(base_url=f"{realtime_server.base}/v1", api_key="any") as caller,
        caller.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        assert (await connection.recv()).type == "session.created"
        for language in ("en", "de"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(connection.recv(), 0.2)
            spoken = {"language": language}
            await connection.session.update(
                session={"type": "transcription", "audio": {"input": {"transcription": spoken}}}
            )
            event = await connection.recv()
            assert (event.type, event.session.audio.input.transcription.language) == ("session.updated", language)
        heard = {"turn_detection": None, "transcription": {"language": "en"}}
        await connection.session.update(session={"type": "transcription", "audio": {"input": heard}})
        await connection.input_audio_buffer.append(audio=encoded(speech()))
        await connection.input_audio_buffer.commit()
        async for event in connection:
            if event.type == COMPLETED:
                break
        assert recordings.word_errors(said.split(), event.transcript.split()) <= 1


def test_a_session_ends_when_its_time_is_over(start, monkeypatch):
    """An error with its code, then 1001, which ends the client's loop without an exception."""
    monkeypatch.setattr(route, "SESSION_S", 1.0)
    with start() as server, server.openai().realtime.connect() as connection:
        seen = [event.type if event.type != "error" else event.error.code for event in connection]
        assert seen == ["session.created", "session_expired"]
        assert Talk(connection).close_code == 1001
