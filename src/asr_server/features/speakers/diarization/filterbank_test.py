"""Features for voices, against Kaldi's own."""

import numpy as np
import pytest
import soundfile

from asr_server import demo
from asr_server.features.speakers.diarization import filterbank

# Computed once by kaldi-native-fbank 1.23 with the options that the module names, of the 1200 samples from 20,000 on of
# the bundled recording: every fourth band of the second frame, and of the fifth from the second band on.
SECOND = [0.4072, 1.8139, -0.5666, 2.7327, -1.1094, 1.9131, 2.5369, 2.6057, 2.2807, 0.8707]
SECOND += [-3.4451, 0.9943, -0.3265, 1.2441, 2.74, -1.1181, 0.1718, 1.0078, 1.2977, -0.4855]
FIFTH = [0.0537, -0.3504, 1.2986, 0.0492, 1.7582, -0.4402, -1.0959, -0.5346, -1.0032, 0.5423]
FIFTH += [2.5486, -2.1688, 0.8054, -1.4149, -1.941, -0.3459, 1.7969, -0.2288, -0.4148, 0.5824]


def test_features_are_kaldis():
    samples, _ = soundfile.read(demo.sample().recording, dtype="float32")
    found = filterbank.features(samples[20_000:21_200])
    assert found.shape == (6, 80)
    assert found.dtype == np.float32
    assert found[1, ::4] == pytest.approx(SECOND, abs=1.5e-4)
    assert found[4, 1::4] == pytest.approx(FIFTH, abs=1.5e-4)


def test_silence_is_finite():
    assert not filterbank.features(np.zeros(400, np.float32)).any()
