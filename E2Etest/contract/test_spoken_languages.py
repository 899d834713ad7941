"""A short segment in an unsure language is heard again in that of the recording, before anybody reads it."""

import json

import numpy as np
import pytest

from asr_server_fake.script import FakeScript, Rule
from E2Etest import recordings

SECOND = 16_000


@pytest.fixture(scope="module")
def server(start):
    """The defaults, so that the engine's script can be replaced."""
    with start() as server:
        yield server


@pytest.mark.parametrize(("logprob", "language", "reason"), [(-0.5, "english", "language"), (-0.001, "french", None)])
def test_a_stream_says_what_the_whole_answer_says(server, logprob, language, reason):
    """Deltas, segments and the reason of the second hearing; a sure change of language stays."""
    server.replace_script(
        FakeScript(
            rules=(
                Rule(min_s=2.5, text="all of this is English", language_logprob=-0.001),
                Rule(text="oui", language="French", language_logprob=logprob),
            )
        )
    )
    speech, pause = recordings.samples(), np.zeros(5 * SECOND, np.int16)
    audio = recordings.wav(np.concatenate([speech, pause, speech[:SECOND], pause]))
    whole = server.transcribe(audio, response_format="verbose_json").json()
    events = server.transcribe(audio, response_format="verbose_json", stream="true").text.splitlines()
    told = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
    *deltas, done = told
    assert "".join(event["delta"] for event in deltas) == done["text"] == "all of this is English oui"
    for body in (whole, done):
        assert body["language"] == "english"
        last = body["segments"][-1]
        several = language != "english"
        assert (last.get("language"), last.get("repaired")) == (language if several else None, reason)
