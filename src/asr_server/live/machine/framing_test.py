"""Bytes to frames."""

import random

import numpy as np

from asr_server.audio.resample import Resampler
from asr_server.core.audio import FRAME_SAMPLES
from asr_server.live.machine.framing import Framing


def resampler(rate):
    """The real one."""
    stream = Resampler()
    return lambda block, last: np.concatenate([stream.push(block, rate), stream.flush() if last else []]).astype("f4")


def _framed(body, rate, rng):
    framing, frames, at = Framing(rate, resampler), [], 0
    while at < len(body):
        size = rng.choice([1, 2, 3, 500, 1_001, 70_000])
        frames += framing.push(body[at : at + size])
        at += size
    return frames, framing.flush()


def test_frames_depend_on_the_bytes_alone():
    """At every rate, however they are cut: the real resampler, to the last bit."""
    body = np.random.default_rng(0).integers(-9_000, 9_000, 40_000).astype("<i2").tobytes()
    for rate in (8_000, 16_000, 24_000, 44_100, 48_000):
        whole = Framing(rate, resampler)
        expected = np.concatenate([*whole.push(body), *whole.flush()])
        assert abs(len(expected) - 40_000 * 16_000 / rate) <= 1
        for seed in range(5):
            frames, rest = _framed(body, rate, random.Random(seed))
            assert {len(frame) for frame in frames} <= {FRAME_SAMPLES}
            assert np.array_equal(np.concatenate([*frames, *rest]), expected)


def test_an_odd_byte_waits_over_a_flush():
    """A flush ends an utterance, not the stream: the sample that it parts is whole afterwards."""
    framing = Framing(16_000, resampler)
    assert framing.push(b"\x00") == framing.flush() == []
    framing.push(b"\x40")
    (rest,) = framing.flush()
    assert rest.tolist() == [0.5]


def test_clearing_forgets_the_odd_byte():
    """After a reset the next byte is the first of a sample."""
    framing = Framing(16_000, resampler)
    framing.push(b"\x00\x10\x7f")
    framing.clear()
    framing.push(b"\x00\x40")
    assert framing.flush()[0].tolist() == [0.5]
