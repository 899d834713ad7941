"""A loaded voice: windows of frames give the samples of all frames, and memory that is given back."""

import gc

import numpy as np
import onnx
import pytest

from asr_server.core.errors import ModelUnavailable
from asr_server.features.speech_output.engines.piper import graph, voice
from asr_server.features.speech_output.engines.piper.network import PiperNetwork, session

SPOKEN = (tuple("ðə kwˈɪk bɹˈaʊn fˈɑːks dʒˈʌmps ˌoʊvɚ ðə lˈeɪzi dˈɑːɡ."), 0, 1.0, (7, 0))


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


def test_the_packaged_voice_is_checked(monkeypatch, packaged):
    """A file that was changed after the installation is not loaded."""
    monkeypatch.setattr("asr_server.core.bundled_package.hashlib.file_digest", _other_digest)
    with pytest.raises(ModelUnavailable, match="is not the file that was installed"):
        PiperNetwork(packaged)


@pytest.mark.slow("divides a voice of 60 MB")
def test_another_voice_needs_no_package(voice_file, monkeypatch):
    """A voice by its path is loaded where the packaged one is not installed."""
    file = voice_file("en_US-own-medium", None)
    monkeypatch.setattr(voice, "installed", lambda distribution, version: False)
    monkeypatch.setattr(voice, "packaged", lambda: pytest.fail("it was looked for"))
    assert PiperNetwork(voice.read(file)).frames(*SPOKEN).shape[1] == 192


def _other_digest(file, mode):
    import hashlib

    return hashlib.new(mode, b"another file")


def _resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4 / 1024


@pytest.mark.nightly
def test_a_voice_that_is_dropped_gives_its_memory_back(packaged):
    """The weights are 63 MB."""
    loaded = PiperNetwork(packaged)
    loaded.frames(*SPOKEN)
    del loaded
    gc.collect()
    before = _resident_mb()
    for _ in range(3):
        PiperNetwork(packaged).frames(*SPOKEN)
        gc.collect()
    assert _resident_mb() - before < 40


@pytest.mark.parametrize("speakers", [1, 3])
def test_a_speaker_is_an_input_of_both_parts(speakers):
    """The graph is a small one of the same form, since no voice with several speakers is packaged."""
    divided = graph.divide(_small_graph(with_speaker=speakers > 1))
    parts = [session(part) for part in (divided.acoustic, divided.vocoder)]
    names = [{one.name for one in part.get_inputs()} for part in parts]
    assert names[0] == {"input", "scales", *graph.NOISES}
    assert names[1] == ({"frames", "sid"} if speakers > 1 else {"frames"})
    frames = np.ones((1, 2, 4), np.float32)
    given = [{"frames": frames} | ({"sid": np.array([n])} if speakers > 1 else {}) for n in range(speakers)]
    assert len({parts[1].run(None, one)[0].tobytes() for one in given}) == speakers


def _small_graph(*, with_speaker):
    """A graph with two sources of random numbers, a convolution and a transposed one."""
    helper, kinds = onnx.helper, onnx.TensorProto
    weights = {
        "table": np.arange(20, dtype=np.float32).reshape(10, 2),
        "kernel": np.ones((2, 2, 1), np.float32),
        "voices": np.arange(6, dtype=np.float32).reshape(3, 2, 1),
        "up": np.ones((2, 1, 4), np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input"], ["embedded"]),
        helper.make_node("Transpose", ["embedded"], ["features"], perm=[0, 2, 1]),
        helper.make_node("RandomNormalLike", ["features"], ["first_noise"]),
        helper.make_node("RandomNormalLike", ["features"], ["second_noise"]),
        helper.make_node("Add", ["features", "first_noise"], ["sum"]),
        helper.make_node("Mul", ["second_noise", "scales"], ["scaled"]),
        helper.make_node("Add", ["sum", "scaled"], ["latent"]),
        helper.make_node("Conv", ["latent", "kernel"], ["before"]),
    ]
    if with_speaker:
        nodes += [helper.make_node("Gather", ["voices", "sid"], ["speaker"])]
        nodes += [helper.make_node("Add", ["before", "speaker"], ["with_speaker"])]
    last = "with_speaker" if with_speaker else "before"
    nodes += [
        helper.make_node("LeakyRelu", [last], ["active"]),
        helper.make_node("ConvTranspose", ["active", "up"], ["output"], strides=[4]),
    ]
    inputs = [
        helper.make_tensor_value_info("input", kinds.INT64, [1, "length"]),
        helper.make_tensor_value_info("scales", kinds.FLOAT, [1]),
    ]
    if with_speaker:
        inputs.append(helper.make_tensor_value_info("sid", kinds.INT64, [1]))
    made = helper.make_graph(
        nodes,
        "small",
        inputs,
        [helper.make_tensor_value_info("output", kinds.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 15)])
    model.ir_version = 8
    return model.SerializeToString()
