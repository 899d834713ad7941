"""The end of turns as a live client sees it: the real model and real speech, with the scripted recogniser."""

import asyncio
import re

import numpy as np
import pytest

from asr_server import demo
from asr_server.cli import live
from E2Etest.drive.session import data, pieces, stream

pytestmark = [pytest.mark.websocket, pytest.mark.slow("judges pauses with a model")]


@pytest.fixture(scope="module")
def server(start):
    """A server that estimates the end of turns where a client does not say otherwise."""
    with start(ENDPOINTING="auto") as found:
        yield found


@pytest.fixture(scope="module")
def sentence():
    """A sentence with pauses inside it, and a second and a half of silence after it, in pieces."""
    speech = np.frombuffer(asyncio.run(live.decoded(demo.speech().recording)), "<i2")
    return pieces(data(np.concatenate([speech, np.zeros(24_000, np.int16)])), 6_400)


@pytest.fixture(scope="module")
def judged(server, sentence):
    """Return all messages that a client without options gets."""
    return stream(server, sentence)


def _ended_by_pauses(messages):
    return [m for m in messages if m.get("is_final") and m["ending"] == "pause"]


def test_a_pause_inside_a_sentence_does_not_end_the_utterance(server, sentence, judged):
    """Judged by its length, the pause would end it. The final reports the estimate, and estimates are counted."""
    timed = stream(server, sentence, endpointing="pause")
    assert len(_ended_by_pauses(judged)) < len(_ended_by_pauses(timed))
    assert _ended_by_pauses(judged)[-1]["end_of_turn"] >= 0.5
    assert not [message for message in timed if "end_of_turn" in message]
    assert re.search(r'asr_live_end_of_turn_total{estimate="estimated"} [1-9]', server.client.get("/metrics").text)


def test_who_asks_for_it_is_told_before_the_final(server, sentence, judged):
    """Nobody else is."""
    told = stream(server, sentence, turn_events="true")
    at, first = next((n, message) for n, message in enumerate(told) if message.get("type") == "turn.likely")
    assert first.keys() == {"type", "utterance", "probability", "end"}
    assert 0.5 <= first["probability"] <= 1
    assert first["utterance"] not in {message["utterance"] for message in told[:at] if message.get("is_final")}
    assert "turn.likely" not in {message.get("type") for message in judged}
