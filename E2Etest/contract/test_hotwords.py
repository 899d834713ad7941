"""Lists of hotwords for recordings without speech, and in live sessions."""

import numpy as np
import pytest

from asr_server_fake.script import Rule
from E2Etest.drive import recordings
from E2Etest.drive.session import act, data, open_session, upto_flush

LIST = "Kubernetes, Istio"
REPEATED = Rule(context=LIST, text="Kubernetes Istio")


@pytest.fixture
def server(scripted_server):
    return scripted_server


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
