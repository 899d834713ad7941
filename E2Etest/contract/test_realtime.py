"""Realtime sessions whose course depends on the time: keys at other servers, clients that wait, and a shutdown."""

import json
import random
import threading
import time
from contextlib import contextmanager

import pytest
from websockets.exceptions import InvalidStatus

from asr_server.features.realtime import route
from asr_server.live import sessions
from asr_server_fake.script import FakeScript
from E2Etest.drive import recordings
from E2Etest.proxy import Proxy
from E2Etest.realtime.session import (
    COMMITTED,
    COMPLETED,
    DELTA,
    FAILED,
    RATE,
    STOPPED,
    Talk,
    encoded,
    open_session,
    speech,
)

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]
MANUAL = {"type": "transcription", "audio": {"input": {"turn_detection": None, "transcription": {"language": "en"}}}}


@pytest.mark.slow("sends audio at the pace of speech")
def test_an_ephemeral_key_opens_its_session_at_any_server_with_the_same_api_keys(start):
    """A server with further keys opens it too. One that does not serve the session's model refuses it with that reason,
    and one with other keys refuses the key."""
    session = {"type": "transcription", "audio": {"input": {"transcription": {"model": "ours", "language": "de"}}}}
    with start(API_KEYS="sk-a", MODEL_ALIASES="ours") as first:
        made = first.openai(_strict_response_validation=True).realtime.client_secrets.create(session=session)
    with start(API_KEYS="sk-b,sk-a", MODEL_ALIASES="ours") as second:
        with second.openai(api_key=made.value).realtime.connect() as connection:
            opened = Talk(connection).only("session.created").session.audio.input.transcription
        assert (opened.model, opened.language) == ("ours", "de")
    for settings, status, code in (
        ({"API_KEYS": "sk-a"}, 404, "model_not_found"),
        ({"API_KEYS": "sk-b"}, 401, "invalid_api_key"),
    ):
        with start(**settings) as other, pytest.raises(InvalidStatus) as refused:
            other.openai(api_key=made.value).realtime.connect().enter()
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body)["error"]["code"] == code


def test_a_session_that_does_not_fit_into_a_key_is_refused(realtime_server):
    """The error says what to do instead."""
    noise = random.Random(1).randbytes(4_000).hex()
    body = {"session": {"type": "transcription", "audio": {"input": {"transcription": {"prompt": noise}}}}}
    answer = realtime_server.client.post("/v1/realtime/client_secrets", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert "session.update" in answer.json()["error"]["message"]


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
        for at in range(0, 6 * RATE, RATE // 5):
            talk.say(speech()[at : at + RATE // 5])
            time.sleep(0.03)  # three times as fast as speech: several texts, of which the first words agree
        assert STOPPED not in [event.type for event in talk.until(DELTA)]


@contextmanager
def _committed(start, step_s, turns=1):
    """A session with turns that a slow, loaded engine has begun to transcribe, and its server."""
    with start(script=FakeScript(step_s=step_s), PRELOAD="true", IDLE_TIMEOUT="0") as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        with open_session(server) as talk:
            talk.update(turn_detection=None)
            for _ in range(turns):
                talk.say(speech())
                talk.commit()
            talk.until(COMMITTED, turns)
            yield server, talk


@pytest.mark.slow("sends audio at the pace of speech")
def test_all_that_was_committed_has_its_words_before_the_close(start, said):
    """The words come in order, also of a turn that is not committed yet. Later audio is not acknowledged."""
    with _committed(start, 0.1, turns=2) as (server, talk):
        talk.say(speech()[:100_000])
        talk.connection.conversation.item.retrieve(item_id="none")  # answered when all that was appended is there
        talk.until("error")
        assert COMPLETED not in [event.type for event in talk.events]
        server.begin_to_stop()
        talk.until(COMMITTED)
        talk.say(speech())
        talk.commit()
        list(map(talk.events.append, talk.connection))
        assert talk.close_code == 1001
    found = {event.item_id: event.transcript for event in talk.events if event.type == COMPLETED}
    assert list(found) == [event.item_id for event in talk.events if event.type == COMMITTED]
    first, second, third = found.values()
    assert first == second == said
    assert third


def test_an_item_that_is_not_finished_in_time_fails_by_name(start, monkeypatch):
    """Its client does not wait for ever, and knows what to send again."""
    monkeypatch.setattr(sessions, "_DRAIN_TIMEOUT_S", 0.2)
    with _committed(start, 0.5) as (server, talk):
        server.begin_to_stop()
        *_, last = talk.connection
        assert talk.close_code == 1001
    assert (last.type, last.item_id, last.error.code) == (FAILED, talk.events[-1].item_id, "shutting_down")


@pytest.mark.nightly
@pytest.mark.slow
def test_an_idle_session_outlives_the_pings_of_a_busy_server(realtime_server, said):
    """Quiet for 45 s, which is longer than a ping and its patience, while files are transcribed: it is still there."""
    ended = threading.Event()

    def busy():
        while not ended.is_set():
            realtime_server.openai().audio.transcriptions.create(file=recordings.sample()[0], model="whisper-1")

    worker = threading.Thread(target=busy)
    with open_session(realtime_server) as talk:
        worker.start()
        time.sleep(45)
        ended.set()
        talk.update(turn_detection=None)
        talk.say(speech())
        talk.commit()
        assert recordings.word_errors(said.split(), talk.until(COMPLETED)[-1].transcript.split()) <= 1
    worker.join()


@pytest.mark.slow("sends audio at the pace of speech")
def test_openais_client_goes_on_at_another_server_as_the_documentation_says(start, said):
    """The client reconnects to a new session, configures it, and sends again the audio after the last
    commit. The item that the shutdown made of the beginning of that audio is dropped."""
    transcripts, mine, sessions_seen = [], set(), 0
    with start() as last, start() as following, Proxy(last.port) as proxy:
        client = last.openai(base_url=f"{proxy.base}/v1")
        query = {"intent": "transcription"}
        with client.realtime.connect(extra_query=query, on_reconnecting=lambda _: None) as connection:

            def turn(audio, *, commit=True):
                connection.input_audio_buffer.append(audio=encoded(audio))
                if commit:
                    connection.input_audio_buffer.commit()

            for event in connection:
                if event.type == "session.created":
                    sessions_seen += 1
                    connection.session.update(session=MANUAL)
                    turn(speech())
                elif event.type == COMMITTED and len(mine) < sessions_seen:
                    mine.add(event.item_id)
                elif event.type == COMPLETED and event.item_id in mine:
                    transcripts.append(event.transcript)
                    if len(transcripts) == 2:
                        break
                    turn(speech()[:100_000], commit=False)
                    connection.conversation.item.retrieve(item_id=event.item_id)
                elif event.type == "conversation.item.retrieved":
                    proxy.target = following.port
                    last.begin_to_stop()
    assert (transcripts, sessions_seen) == ([said, said], 2)
