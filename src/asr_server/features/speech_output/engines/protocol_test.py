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


@pytest.mark.parametrize(
    "value",
    [
        Sentence("Hello.", "nova", "de", "Softly.", 2**62, speed=1.5),
        Sentence("Hello.", sample=VoiceSample(np.linspace(-1, 1, 9, dtype=np.float32), "one two", "a1")),
        SpokenSentence(SpeechFinish.BUDGET, 24_000),
    ],
)
def test_a_value_is_the_same_in_the_other_process(value):
    """A voice to imitate has its samples."""
    fields, samples = pack(value)
    assert repr(unpack((json.loads(json.dumps(fields)), samples))) == repr(value)
