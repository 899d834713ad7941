"""PCM of any shape."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.features.wyoming.pcm import PcmFormat, PcmStream, UnknownFormat

_TONE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(500) / 16_000)


def _encoded(wave, width, channels):
    """-1..1 as interleaved integers of that width, the same in every channel."""
    wide = np.repeat(wave, channels)
    if width == 1:
        return ((wide * 127).round() + 128).astype(np.uint8).tobytes()
    whole = (wide * (2 ** (8 * width - 1) - 1)).round().astype("<i8")
    return whole.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _decoded(pieces, form):
    stream = PcmStream()
    return np.frombuffer(b"".join(stream.push(piece, form) for piece in pieces) + stream.flush(), "<i2") / 32_768


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 6_000), max_size=10), width=st.integers(1, 4), channels=st.integers(1, 6))
def test_every_width_and_channel_count_is_the_same_sound_however_it_is_cut(cuts, width, channels):
    body = _encoded(_TONE, width, channels)
    form = PcmFormat(16_000, width, channels)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    whole = _decoded([body], form)
    assert np.abs(whole - _TONE).max() < (0.02 if width == 1 else 1e-4)
    assert np.array_equal(_decoded([body[a:b] for a, b in itertools.pairwise(edges)], form), whole)


def test_unsupported_formats_are_refused():
    for form in [(0, 2, 1), (16_000, 5, 1), (16_000, 2, 0), (16_000, 2, 33), ("16000", 2, 1), (16e3, 2, 1)]:
        with pytest.raises(UnknownFormat):
            PcmFormat(*form)
