"""The end of turns as a live client sees it: the real model and real speech, with the scripted recogniser."""

import asyncio
import re

import numpy as np
import pytest
import soxr

from asr_server import demo, feature_list
from asr_server.cli import live
from E2Etest.drive.session import act, open_session, receive, upto_flush
from E2Etest.realtime.session import RATE, STOPPED
from E2Etest.realtime.session import open_session as realtime_session

pytestmark = [pytest.mark.websocket]


@pytest.fixture(scope="module")
def server(start):
    """A server that estimates the end of turns where a client does not say otherwise."""
    with start(ENDPOINTING="auto") as found:
        yield found


@pytest.fixture(scope="module")
def sentence():
    """A sentence with pauses inside it as int16 (n,) at 16 kHz, and a second and a half of silence behind it."""
    speech = np.frombuffer(asyncio.run(live.decoded(demo.speech().recording)), "<i2")
    return np.concatenate([speech, np.zeros(24_000, np.int16)])


def _messages(server, audio, **query):
    """Return all messages up to the answer to a flush."""
    with open_session(server, **query) as socket:
        for at in range(0, len(audio), 3_200):
            socket.send(audio[at : at + 3_200].tobytes())
        act(socket, "flush")
        return upto_flush(socket)


@pytest.fixture(scope="module")
def judged(server, sentence):
    """Return all messages that a client without options gets."""
    return _messages(server, sentence)


def _ended_by_pauses(messages):
    return [m for m in messages if m.get("is_final") and m["ending"] == "pause"]


@pytest.mark.slow("judges pauses with a model")
def test_a_pause_inside_a_sentence_does_not_end_the_utterance(server, sentence, judged):
    """Judged by its length, the pause would end it. The final reports the estimate, and estimates are counted."""
    timed = _messages(server, sentence, endpointing="pause")
    assert len(_ended_by_pauses(judged)) < len(_ended_by_pauses(timed))
    assert _ended_by_pauses(judged)[-1]["end_of_turn"] >= 0.5
    assert not [message for message in timed if "end_of_turn" in message]
    assert re.search(r'asr_live_end_of_turn_total{estimate="estimated"} [1-9]', server.client.get("/metrics").text)


@pytest.mark.slow("judges pauses with a model")
def test_who_asks_for_it_is_told_before_the_final(server, sentence, judged):
    """Nobody else is."""
    told = _messages(server, sentence, turn_events="true")
    likely = [n for n, message in enumerate(told) if message.get("type") == "turn.likely"]
    assert likely
    first = told[likely[0]]
    assert first.keys() == {"type", "utterance", "probability", "end"}
    assert 0.5 <= first["probability"] <= 1
    final = next(n for n, m in enumerate(told) if m.get("is_final") and m["utterance"] == first["utterance"])
    assert likely[0] < final
    assert not [message for message in judged if message.get("type") == "turn.likely"]


def test_a_server_without_the_model_refuses_it(start, monkeypatch):
    """In the middle of a session too, and the session goes on."""
    others = tuple(feature for feature in feature_list.FEATURES if feature.end_of_turn is None)
    monkeypatch.setattr(feature_list, "FEATURES", others)
    with start(ENDPOINTING="auto") as server:
        with open_session(server, endpointing="semantic") as socket:
            assert (socket.hello["code"], socket.hello["error"]["param"]) == ("unsupported_value", "endpointing")
        with open_session(server) as socket:
            assert socket.hello["endpointing"] == "pause"
            act(socket, "config", endpointing="semantic")
            assert receive(socket)["code"] == "unsupported_value"
            act(socket, "ping")
            assert receive(socket) == {"status": "pong"}


@pytest.mark.nightly
@pytest.mark.slow("judges pauses with a model")
def test_semantic_vad_of_the_realtime_protocol_is_the_same_estimate(server, sentence):
    """A pause inside the sentence ends a turn by `server_vad`, and not by `semantic_vad`, also without a full stop."""
    pcm_24k = soxr.resample(sentence, 16_000, RATE).astype("<i2").tobytes()
    turns = {}
    for kind in ("server_vad", "semantic_vad"):
        with realtime_session(server) as talk:
            talk.update(turn_detection={"type": kind})
            talk.say(pcm_24k)
            talk.connection.input_audio_buffer.clear()  # answered in order with the audio before it
            talk.until("input_audio_buffer.cleared")
            turns[kind] = sum(event.type == STOPPED for event in talk.events)
    assert 0 < turns["semantic_vad"] < turns["server_vad"]
