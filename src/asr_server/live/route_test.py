"""The encodings of live audio."""

import numpy as np

from asr_server.live.actions import ENCODINGS


def test_floats_beyond_the_range_are_clipped_and_no_number_is_silence():
    sent = np.array([np.nan, 2.0, -2.0, 0.5, np.inf, -np.inf, 3e38], "<f4")
    pcm = ENCODINGS["pcm_f32le"].pcm(sent.tobytes())
    assert np.frombuffer(pcm, "<i2").tolist() == [0, 32767, -32768, 16384, 32767, -32768, 32767]
