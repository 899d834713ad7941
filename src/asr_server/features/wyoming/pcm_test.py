"""PCM of any shape."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.features.wyoming.pcm import PcmFormat, PcmStream, UnknownFormat

_TONE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)


def _encoded(wave, width, channels):
    """-1..1 as interleaved integers of that width, the same in every channel."""
    wide = np.repeat(wave, channels)
    if width == 1:
        return ((wide * 127).round() + 128).astype(np.uint8).tobytes()
    whole = (wide * (2 ** (8 * width - 1) - 1)).round().astype("<i8")
    return whole.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _decoded(pieces, form):
    stream = PcmStream()
    body = b"".join([stream.push(piece, form) for piece in pieces] + [stream.flush()])
    return np.frombuffer(body, "<i2") / 32_768


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_every_width_and_channel_count_is_the_same_sound(width, channels):
    decoded = _decoded([_encoded(_TONE, width, channels)], PcmFormat(16_000, width, channels))
    assert np.abs(decoded - _TONE).max() < (0.02 if width == 1 else 1e-4)


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 6_000), max_size=10), width=st.integers(1, 4), channels=st.integers(1, 3))
def test_how_the_bytes_are_cut_changes_nothing(cuts, width, channels):
    body = _encoded(_TONE[:500], width, channels)
    form = PcmFormat(16_000, width, channels)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(edges)]
    assert np.array_equal(_decoded(pieces, form), _decoded([body], form))


def test_the_format_may_change_on_the_way():
    stream = PcmStream()
    first = stream.push(_encoded(_TONE[:8_000], 2, 1), PcmFormat(16_000, 2, 1))
    second = stream.push(_encoded(np.repeat(_TONE[8_000:], 3), 2, 2), PcmFormat(48_000, 2, 2)) + stream.flush()
    assert len(first) == 16_000
    assert abs(len(second) - 16_000) <= 4


def test_unsupported_formats_are_refused():
    for form in [(0, 2, 1), (16_000, 5, 1), (16_000, 2, 0), (16_000, 2, 33), ("16000", 2, 1), (16e3, 2, 1)]:
        with pytest.raises(UnknownFormat):
            PcmFormat(*form)
