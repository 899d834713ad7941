"""Answers that a prompt or hotwords have made, though the sound does not support them, are replaced or marked."""

import numpy as np
import pytest

from asr_server_fake.script import Rule
from E2Etest.drive import recordings
from E2Etest.drive.process import events
from E2Etest.drive.session import act, data, open_session, upto_flush
from E2Etest.exposition import moved, scrape

LIST = "Kubernetes, Istio"
REPEATED = Rule(context=LIST, text="Kubernetes Istio")
WORDS = {"response_format": "verbose_json", "timestamp_granularities[]": ["segment", "word"]}


@pytest.fixture
def server(scripted_server):
    return scripted_server


@pytest.mark.parametrize("instead", ["", "hm"])
def test_a_list_without_support_is_heard_again_without_it(server, scripted, instead):
    """The segment says why, and a metric counts it."""
    scripted(REPEATED, Rule(text=instead, forced_logprob=-6.0))
    before = scrape(server)
    body = server.transcribe(recordings.sample()[0], hotwords=LIST, **WORDS).json()
    assert (body["text"], [one["repaired"] for one in body["segments"]]) == (instead, ["context"] * bool(instead))
    assert not any("bias" in word for word in body["words"])
    assert moved(before, scrape(server))("asr_repaired_segments_total", reason="context") == 1


def test_nothing_of_such_a_list_is_streamed(server, scripted):
    """A stream sends none of its words either, which could not be taken back."""
    scripted(REPEATED, Rule(text="hm", forced_logprob=-6.0))
    sent = events(server.transcribe(recordings.sample()[0], hotwords=LIST, stream="true"))
    assert [one.get("delta", one.get("text")) for one in sent] == ["hm", "hm"]


def test_words_that_the_list_decided_are_marked(server, scripted):
    """A word is marked that is a term and is another without the list; a list that the sound supports stays."""
    scripted(Rule(context=LIST, text="Kubernetes Istio now"), Rule(text="cooper Istio no"))
    body = server.transcribe(recordings.sample()[0], hotwords=LIST, **WORDS).json()
    assert [(word["word"], word.get("bias")) for word in body["words"]] == [
        ("Kubernetes", True),
        ("Istio", None),
        ("now", None),
    ]
    assert "repaired" not in body["segments"][0]


def test_sound_without_speech_is_heard_without_a_list(server, scripted):
    """The model gets such sound with `vad=off` and `vad=advise`."""
    without = "it has no list and as many words as slow speech"
    scripted(Rule(context=LIST, text="it has the list"), Rule(text=without))
    noise = (3_000 * np.random.default_rng(0).normal(0, 1, 5 * 16_000)).astype(np.int16)
    for vad in ("off", "advise"):
        body = server.transcribe(recordings.wav(noise), hotwords=LIST, vad=vad).json()
        assert body["text"] == without
    speech = server.transcribe(recordings.sample()[0], hotwords=LIST, vad="off").json()
    assert speech["text"] == "it has the list"


def test_a_live_session_does_not_show_such_a_list(server, scripted, speech):
    """Neither in partials, whose words would be committed, nor in the final."""
    scripted(REPEATED, Rule(text="hm", forced_logprob=-6.0))
    with open_session(server) as socket:
        act(socket, "config", hotwords=LIST)
        socket.send(data(speech))
        act(socket, "flush")
        messages = upto_flush(socket)
    shown = {one["text"] for one in messages if one.get("text")}
    assert shown == {"hm"}


@pytest.mark.parametrize(("logprob", "language", "reason"), [(-0.5, "english", "language"), (-0.001, "french", None)])
def test_a_short_segment_in_an_unsure_language_is_heard_again_in_that_of_the_recording(
    server, scripted, logprob, language, reason
):
    """A stream says what the whole answer says, with the reason; a sure change of language stays."""
    scripted(
        Rule(min_s=2.5, text="all of this is English", language_logprob=-0.001),
        Rule(text="oui", language="French", language_logprob=logprob),
    )
    speech, pause = recordings.samples(), np.zeros(5 * 16_000, np.int16)
    audio = recordings.wav(np.concatenate([speech, pause, speech[:16_000], pause]))
    whole = server.transcribe(audio, response_format="verbose_json").json()
    *deltas, done = events(server.transcribe(audio, response_format="verbose_json", stream="true"))
    assert "".join(event["delta"] for event in deltas) == done["text"] == "all of this is English oui"
    told = language if language != "english" else None
    for body in (whole, done):
        last = body["segments"][-1]
        assert (body["language"], last.get("language"), last.get("repaired")) == ("english", told, reason)
