"""The conversions of samples and times, and the rounding of each."""

from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES, s_to_ms, s_to_samples, samples_to_ms, samples_to_s
from asr_server.core.audio import samples_to_whole_ms as whole_ms


def test_each_conversion_rounds_as_it_says() -> None:
    """A millisecond is 16 samples: 15 samples are nearly one, and none that is complete."""
    assert [samples_to_s(n) for n in (0, 1, 16_000)] == [0.0, 1 / 16_000, 1.0]
    assert [samples_to_ms(n) for n in (0, 7, 9, 15, 16, 24, 40)] == [0, 0, 1, 1, 1, 2, 2]
    assert [whole_ms(n) for n in (0, 7, 9, 15, 16, 31, 32)] == [0, 0, 0, 0, 1, 1, 2]
    assert [s_to_samples(s) for s in (0.0, 0.99999 / 16_000, 1 / 16_000, 1.5)] == [0, 0, 1, 24_000]
    assert [s_to_ms(s) for s in (0.0, 0.0004, 0.0006, 1.2345678)] == [0, 0, 1, 1235]
    assert samples_to_ms(FRAME_SAMPLES) == FRAME_MS
