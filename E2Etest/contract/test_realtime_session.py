"""Realtime sessions whose course depends on the time."""

import asyncio
import time

import openai
import pytest

from asr_server.features.realtime import route
from E2Etest.drive import recordings
from E2Etest.drive.session import pieces
from E2Etest.realtime.session import COMPLETED, DELTA, RATE, STOPPED, Talk, encoded, kinds, open_session, speech

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]


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


def test_certain_words_come_while_the_speaker_speaks(realtime_server):
    """Deltas before the turn is over."""
    with open_session(realtime_server) as talk:
        for piece in pieces(speech()[: 6 * RATE], RATE // 5):
            talk.say(piece)
            time.sleep(0.03)  # three times as fast as speech: several texts, of which the first words agree
        assert STOPPED not in kinds(talk.until(DELTA))
