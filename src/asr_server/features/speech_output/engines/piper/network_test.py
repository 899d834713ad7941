"""A loaded voice: windows of frames give the samples of all frames, and memory that is given back."""

import hashlib

import numpy as np
import pytest

from asr_server.core.errors import ModelUnavailable
from asr_server.features.speech_output.engines.piper import voice
from asr_server.features.speech_output.engines.piper.network import PiperNetwork

SPOKEN = (tuple("ðə kwˈɪk bɹˈaʊn fˈɑːks dʒˈʌmps ˌoʊvɚ ðə lˈeɪzi dˈɑːɡ."), 0, 1.0, (7, 0))


@pytest.fixture(scope="module")
def network():
    return PiperNetwork(voice.read(voice.packaged()))


def test_windows_give_the_samples_of_all_frames(network, monkeypatch):
    """The frames around a window are enough. The first window is the shortest."""
    frames = network.frames(*SPOKEN)
    windows = list(network.samples(frames, 0))
    monkeypatch.setattr("asr_server.features.speech_output.engines.piper.network._WINDOWS", (frames.shape[2],))
    (whole,) = network.samples(frames, 0)
    assert len(windows) > 2
    assert len(windows[0]) < len(windows[1])
    np.testing.assert_allclose(np.concatenate(windows), whole, atol=1e-5)


def test_enough_random_numbers_are_drawn_for_slow_speech(network):
    """The numbers are enough also for the least text at the least speed, and for a sign that is held long."""
    for phonemes in (("h", "m", "."), tuple("aː" * 40), (".",) * 60):
        frames = network.frames(phonemes, 0, 0.25, (1, 1))
        assert np.isfinite(frames).all()


def test_a_file_that_is_no_network_is_refused_with_the_reason(voice_file):
    """The words of onnxruntime about a graph are not for a caller."""
    for content, reason in ((b"RIFF" * 100, "no ONNX model"), (b"", "cannot mmap an empty file")):
        with pytest.raises(ModelUnavailable, match=f"The voice .* cannot be loaded: .*{reason}"):
            PiperNetwork(voice.read(voice_file(f"de_DE-karl{len(content)}-low", content)))


def test_only_the_packaged_voice_is_that_of_the_package(monkeypatch, voice_file):
    """A file that was changed after the installation is not loaded. Other voices are not compared with it."""
    other = lambda file, mode: hashlib.new(mode, b"another file")  # noqa: E731
    monkeypatch.setattr("asr_server.core.bundled_package.hashlib.file_digest", other)
    with pytest.raises(ModelUnavailable, match="is not the file that was installed"):
        PiperNetwork(voice.read(voice.packaged()))
    voice.read(voice_file()).check_file()
