"""Realtime sessions whose server shuts down: nothing that was committed is lost without a word."""

import pytest

from asr_server.live import sessions
from asr_server_fake.script import FakeScript
from E2Etest.proxy import Proxy
from E2Etest.realtime.session import COMMITTED, COMPLETED, FAILED, encoded, open_session, speech, texts

pytestmark = pytest.mark.websocket
MANUAL = {"type": "transcription", "audio": {"input": {"turn_detection": None, "transcription": {"language": "en"}}}}
_SLOW = FakeScript(step_s=0.1)


def _appended(talk):
    """Wait until the server has all that was appended: it answers events in order."""
    talk.connection.conversation.item.retrieve(item_id="none")
    talk.until("error")


def test_all_that_was_committed_has_its_words_before_the_close(start, said):
    """In order, and the turn that nobody has committed yet too. What comes behind it is not acknowledged."""
    with start(script=_SLOW, PRELOAD="true", IDLE_TIMEOUT="0") as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        with open_session(server) as talk:
            talk.update(turn_detection=None)
            for _ in range(2):
                talk.say(speech())
                talk.commit()
            talk.until(COMMITTED, 2)
            talk.say(speech()[:100_000])
            _appended(talk)
            assert COMPLETED not in [event.type for event in talk.events]
            server.begin_to_stop()
            talk.until(COMMITTED)
            talk.say(speech())
            talk.commit()
            list(map(talk.events.append, talk.connection))
            assert talk.close_code == 1001
    committed = [event.item_id for event in talk.events if event.type == COMMITTED]
    assert [event.item_id for event in talk.events if event.type == COMPLETED] == committed
    assert len(committed) == 3
    found = [text for _, text in texts(talk.events).values()]
    assert found[:2] == [said, said]
    assert found[2]


def test_an_item_that_is_not_finished_in_time_fails_by_name(start, monkeypatch):
    """Its client does not wait for ever, and knows what to send again."""
    monkeypatch.setattr(sessions, "_DRAIN_TIMEOUT_S", 0.2)
    with start(script=FakeScript(step_s=0.5), PRELOAD="true", IDLE_TIMEOUT="0") as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        with open_session(server) as talk:
            talk.update(turn_detection=None)
            talk.say(speech())
            talk.commit()
            talk.until(COMMITTED)
            server.begin_to_stop()
            events = list(talk.connection)
            assert talk.close_code == 1001
    assert (events[-1].type, events[-1].item_id) == (FAILED, talk.events[-1].item_id)
    assert events[-1].error.code == "shutting_down"


def test_openais_client_goes_on_at_another_server_as_the_documentation_says(start, said):
    """It connects again by itself, to a session of its own: it is configured again, and gets the audio behind the last
    commit again. The item that the shutdown made of the beginning of that audio is dropped."""
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
