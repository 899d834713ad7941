"""The resampler: which frequencies pass, and how long the result is."""

from __future__ import annotations

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


def test_no_alias():
    """Tones from 8.2 to 20 kHz, which 16 kHz cannot hold, are attenuated by at least 100 dB."""
    for rate_hz in (44_100, 48_000, 384_000):
        assert max(gain_db(hz, rate_hz) for hz in (8_200, 9_000, 10_000, 12_000, 15_000, 20_000)) < -100, rate_hz


def test_passband_is_flat():
    """Speech up to 7.3 kHz passes within 0.05 dB."""
    for rate_hz in (22_050, 44_100, 48_000, 384_000):
        assert max(abs(gain_db(hz, rate_hz)) for hz in (100, 1_000, 4_000, 7_000, 7_300)) < 0.05, rate_hz


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


def test_rate_may_change():
    """The audio before a change is flushed and nothing is lost."""
    resampler = Resampler()
    pieces = [resampler.push(tone(1.0, rate)[0], rate) for rate in (48_000, 16_000, 44_100)]
    assert abs(sum(map(len, [*pieces, resampler.flush()])) - 3 * SAMPLE_RATE) <= 3


def test_the_wave_stays_where_it_is():
    """At any rate that a file may have: the filter's delay is taken off."""
    for rate_hz in (1_000, 8_000, 11_025, 22_050, 44_100, 96_000, 192_000, 384_000, 768_000):
        out = resampled(tone(1.0, rate_hz, hz=100.0)[0], rate_hz, rate_hz)
        assert np.abs(out - tone(1.0, SAMPLE_RATE, hz=100.0)[0])[3_000:-3_000].max() < 1e-3, rate_hz
