"""WAV headers. For streams, and readers of both, see client_test.py."""

from __future__ import annotations

import io
import wave

import pytest

from asr_server.core.audio import SPEECH_RATE, wav_header
from asr_server.features.speech_output.encoding.headers import wav_file


def test_a_whole_file_states_its_length():
    """Python reads the header."""
    with wave.open(io.BytesIO(wav_file(b"\x01\x02\x03\x04"))) as reader:
        assert reader.getparams()[:4] == (1, 2, 24_000, 2)
        assert reader.readframes(9) == b"\x01\x02\x03\x04"


def test_there_is_no_file_of_4_gib():
    with pytest.raises(ValueError, match="do not fit"):
        wav_header(2**32 - 40, SPEECH_RATE)
