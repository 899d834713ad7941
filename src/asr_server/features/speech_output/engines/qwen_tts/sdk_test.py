"""Libraries that the SDK need not load are not loaded, in a process that has imported nothing yet."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.nightly]  # 10 s to import

PROGRAM = """
import sys
from asr_server.features.speech_output.engines.qwen_tts import runtime
print([name for name in ("librosa", "soundfile", "sox", "torchaudio", "onnxruntime") if name in sys.modules])
"""


def test_the_engine_comes_without_what_it_never_calls():
    """Nor prints what the SDK would."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=110)
    assert done.stdout == "[]\n"


def test_filters_are_those_of_librosa():
    """Slaney's: linear to 1 kHz, logarithmic above, each of area 1 in Hz."""
    import numpy as np

    from asr_server.features.speech_output.engines.qwen_tts.sdk import _mel_filters

    filters = _mel_filters(sr=24_000, n_fft=1024, n_mels=128, fmin=0, fmax=12_000)
    assert filters.shape == (128, 513)
    assert filters.dtype == np.float32
    centres = filters.argmax(1) * 24_000 / 1024
    assert np.diff(centres[:20]).std() < 24_000 / 1024
    assert np.allclose(filters.sum(1)[30:] * 24_000 / 1024, 1, atol=0.1)
