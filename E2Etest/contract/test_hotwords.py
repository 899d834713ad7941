"""Answers that a prompt or hotwords have made, though the sound does not support them, are replaced or marked."""

import json

import numpy as np
import pytest

from asr_server_fake.script import FakeScript, Rule
from E2Etest import recordings
from E2Etest.exposition import moved, scrape
from E2Etest.live.session import act, data, open_session, upto_flush

LIST = "Kubernetes, Istio"
REPEATED = Rule(context=LIST, text="Kubernetes Istio")
WORDS = {"response_format": "verbose_json", "timestamp_granularities[]": ["segment", "word"]}


@pytest.fixture(scope="module")
def server(start):
    """The defaults, so that the engine's script can be replaced."""
    with start() as server:
        yield server


@pytest.fixture
def script(server):
    """Sets the rules of the engine, until the end of the test."""
    yield lambda *rules: server.replace_script(FakeScript(rules=rules))
    server.replace_script(FakeScript())


@pytest.mark.parametrize("instead", ["", "hm"])
def test_a_list_without_support_is_heard_again_without_it(server, script, instead):
    """The segment says why, and a metric counts it."""
    script(REPEATED, Rule(text=instead, forced_logprob=-6.0))
    before = scrape(server)
    body = server.transcribe(recordings.sample()[0], hotwords=LIST, **WORDS).json()
    assert (body["text"], [one["repaired"] for one in body["segments"]]) == (instead, ["context"] * bool(instead))
    assert not any("bias" in word for word in body["words"])
    assert moved(before, scrape(server))("asr_repaired_segments_total", reason="context") == 1


def test_nothing_of_such_a_list_is_streamed(server, script):
    """A stream sends none of its words either, which could not be taken back."""
    script(REPEATED, Rule(text="hm", forced_logprob=-6.0))
    events = server.transcribe(recordings.sample()[0], hotwords=LIST, stream="true").text.splitlines()
    bodies = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
    assert [one.get("delta", one.get("text")) for one in bodies] == ["hm", "hm"]


def test_words_that_the_list_decided_are_marked(server, script):
    """A word is marked that is a term and is another without the list; a list that the sound supports stays."""
    script(Rule(context=LIST, text="Kubernetes Istio now"), Rule(text="cooper Istio no"))
    body = server.transcribe(recordings.sample()[0], hotwords=LIST, **WORDS).json()
    assert [(word["word"], word.get("bias")) for word in body["words"]] == [
        ("Kubernetes", True),
        ("Istio", None),
        ("now", None),
    ]
    assert "repaired" not in body["segments"][0]


def test_sound_without_speech_is_heard_without_a_list(server, script):
    """The model gets such sound with `vad=off` and `vad=advise`."""
    without = "it has no list and as many words as slow speech"
    script(Rule(context=LIST, text="it has the list"), Rule(text=without))
    noise = (3_000 * np.random.default_rng(0).normal(0, 1, 5 * 16_000)).astype(np.int16)
    for vad in ("off", "advise"):
        body = server.transcribe(recordings.wav(noise), hotwords=LIST, vad=vad).json()
        assert body["text"] == without
    speech = server.transcribe(recordings.sample()[0], hotwords=LIST, vad="off").json()
    assert speech["text"] == "it has the list"


def test_a_live_session_does_not_show_such_a_list(server, script, speech):
    """Neither in partials, whose words would be committed, nor in the final."""
    script(REPEATED, Rule(text="hm", forced_logprob=-6.0))
    with open_session(server) as socket:
        act(socket, "config", hotwords=LIST)
        socket.send(data(speech))
        act(socket, "flush")
        messages = upto_flush(socket)
    shown = {one["text"] for one in messages if one.get("text")}
    assert shown == {"hm"}
