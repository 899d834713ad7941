"""Sentences and answers as another process gets them."""

import json

import numpy as np
import pytest

from asr_server.features.speech_output.engines.protocol import (
    Sentence,
    SpeechFinish,
    SpokenSentence,
    VoiceSample,
    pack,
    unpack,
)


def _sent(value):
    fields, samples = pack(value)
    return unpack((json.loads(json.dumps(fields)), samples))


@pytest.mark.parametrize(
    "value",
    [
        Sentence("Hello.", "nova", "de", "Softly.", 2**62, speed=1.5),
        SpokenSentence(SpeechFinish.BUDGET, 24_000),
    ],
)
def test_a_value_is_the_same_in_the_other_process(value):
    assert repr(_sent(value)) == repr(value)


def test_a_voice_to_imitate_has_its_samples():
    sample = VoiceSample(np.linspace(-1, 1, 24_000, dtype=np.float32), "one two", "a1")
    found = _sent(Sentence("Hello.", sample=sample)).sample
    assert (found.text, found.key) == ("one two", "a1")
    assert np.array_equal(found.audio, sample.audio)
