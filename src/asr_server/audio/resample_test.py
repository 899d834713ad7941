"""The resampler: which frequencies pass, and how long the result is."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.audio.conftest import tone
from asr_server.audio.resample import Resampler
from asr_server.core.audio import SAMPLE_RATE


def resampled(mono, rate_hz, chunk):
    resampler = Resampler()
    pieces = [resampler.push(mono[at : at + chunk], rate_hz) for at in range(0, len(mono), chunk)]
    return np.concatenate([*pieces, resampler.flush()])


def gain_db(hz, rate_hz):
    out = resampled(tone(1.0, rate_hz, hz=hz)[0], rate_hz, rate_hz)[2_000:-2_000]
    return float(10 * np.log10(np.mean(out.astype(np.float64) ** 2) / 0.08 + 1e-20))


def test_speech_passes_and_nothing_else():
    """Up to 7.3 kHz within 0.05 dB. Tones that 16 kHz cannot hold are attenuated by at least 100 dB."""
    for rate_hz in (44_100, 384_000):
        assert max(abs(gain_db(hz, rate_hz)) for hz in (100, 7_300)) < 0.05, rate_hz
        assert max(gain_db(hz, rate_hz) for hz in (8_200, 12_000, 20_000)) < -100, rate_hz


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 30_000), st.sampled_from([8_000, 11_025, 16_000, 22_050, 44_100, 48_000]), st.integers(100, 50_000)
)
def test_length_and_chunking(count, rate_hz, chunk):
    """Any number of samples gives its share of 16 kHz within one, and how it is fed in changes nothing."""
    mono = np.random.default_rng(count).uniform(-1, 1, count).astype(np.float32)
    whole = resampled(mono, rate_hz, count)
    assert abs(len(whole) - count * SAMPLE_RATE / rate_hz) <= 1
    assert np.abs(resampled(mono, rate_hz, chunk) - whole).max(initial=0) < 1e-5
