"""Options of the encoder, and their ranges."""

import pytest

from asr_server.features.speech_output.encoding.formats import EncodingOptions, SpeechFormat


@pytest.mark.parametrize(
    "fault",
    [
        {"speed": 0.24},
        {"speed": 4.01},
        {"speed": float("nan")},
        {"pause_ms": -1},
        {"pause_ms": 40_001},
        {"loudness_lufs": 0.0},
        {"loudness_lufs": float("nan")},
    ],
)
def test_numbers_out_of_their_range(fault):
    """Such numbers would take memory, or make noise."""
    with pytest.raises(ValueError, match=next(iter(fault))):
        EncodingOptions(SpeechFormat.PCM, **fault)
