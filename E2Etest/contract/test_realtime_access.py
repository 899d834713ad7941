"""Ephemeral keys at other servers, a model that fails, and clients that are gone or idle."""

import json
import random
import threading
import time

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from asr_server_fake.script import FakeScript
from E2Etest.drive import recordings
from E2Etest.realtime.session import COMMITTED, COMPLETED, FAILED, STARTED, Talk, encoded, open_session, speech

pytestmark = pytest.mark.websocket


def test_an_ephemeral_key_opens_its_session_at_any_server_with_the_same_api_keys(start):
    """Also at one with further keys. One that does not serve the model of the session says so, and another with other
    keys knows nothing of it."""
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


def test_a_turn_that_fails_says_so_and_the_next_is_heard(start):
    """The model cannot be loaded for one turn: it fails under its item; then it can, and the next turn has words."""
    with start(script=FakeScript(load_failures=1_000)) as server, open_session(server) as talk:
        talk.update(turn_detection=None)
        talk.say(speech())
        talk.commit()
        failed = talk.until(FAILED)
        assert len({e.item_id for e in failed if hasattr(e, "item_id")}) == 1
        assert failed[-1].error.code == "model_unavailable"
        server.replace_script(FakeScript())
        talk.say(speech())
        talk.commit()
        events = talk.until(COMPLETED)
        assert events[-1].transcript
        assert next(e for e in events if e.type == COMMITTED).previous_item_id == failed[-1].item_id


def test_a_client_that_is_gone_frees_its_session_at_once(realtime_server):
    """Killed in the middle of a turn: the session is gone, nothing of it is waiting, and no answer is made."""
    before = realtime_server.health()["live"]["sessions"]
    with connect(f"{realtime_server.base.replace('http', 'ws', 1)}/v1/realtime", max_size=None) as socket:
        socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": encoded(speech())}))
        while json.loads(socket.recv())["type"] != STARTED:
            pass
        assert realtime_server.health()["live"]["sessions"] == before + 1
        socket.socket.close()
        live = realtime_server.wait_for(lambda health: health["live"]["sessions"] == before, timeout_s=5)["live"]
    assert live["waiting"] == 0


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
