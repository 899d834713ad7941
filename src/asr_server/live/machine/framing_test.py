"""Bytes to frames."""

import random

import numpy as np

from asr_server.core.audio import FRAME_SAMPLES
from asr_server.live.machine.framing import Framing, WholeSamples


def _pushed(framing, body):
    block = framing.push(body)
    return block.samples() if block is not None else np.zeros(0, np.float32)


def test_frames_depend_on_the_bytes_alone():
    body = np.random.default_rng(0).integers(-9_000, 9_000, 40_000).astype("<i2").tobytes()
    for rate in (8_000, 16_000, 24_000, 44_100, 48_000):
        whole = Framing(rate)
        expected = np.concatenate([_pushed(whole, body), whole.flush().samples()])
        assert abs(len(expected) - 40_000 * 16_000 / rate) <= 1
        for seed in range(5):
            framing, rng, parts, at = Framing(rate), random.Random(seed), [], 0
            while at < len(body):
                size = rng.choice([1, 2, 3, 500, 1_001, 70_000])
                parts.append(_pushed(framing, body[at : at + size]))
                at += size
            assert not any(len(part) % FRAME_SAMPLES for part in parts)
            assert np.array_equal(np.concatenate([*parts, framing.flush().samples()]), expected)
            assert framing.buffered_samples == 0


def test_an_odd_byte_waits_over_a_flush():
    """A flush ends an utterance, not the stream: the sample that it parts is whole afterwards."""
    framing = Framing(16_000)
    assert framing.push(b"\x00") is framing.flush() is None
    framing.push(b"\x40")
    assert framing.flush().samples().tolist() == [0.5]


def test_samples_come_whole_however_they_are_cut():
    """At once when they are complete; a beginning without its end waits, until it is forgotten."""
    whole = WholeSamples()
    assert [whole.push(piece) for piece in (b"ab", b"c", b"", b"def", b"g")] == [b"ab", b"", b"", b"cdef", b""]
    whole.clear()
    assert whole.push(b"hi") == b"hi"
