"""A voice's graph in two parts: the same samples as the whole, and files that are none."""

import numpy as np
import pytest

from asr_server.features.speech_output.engines.piper import graph, voice
from asr_server.features.speech_output.engines.piper.conftest import small_graph
from asr_server.features.speech_output.engines.piper.network import session

LENGTH = 41


def packaged():
    return voice.packaged().read_bytes()


def run(model, **values):
    loaded = session(model)
    (found,) = loaded.run(None, {one.name: values[one.name] for one in loaded.get_inputs()})
    return found


@pytest.mark.parametrize(
    "make", [small_graph, lambda: small_graph(with_speaker=True), pytest.param(packaged, marks=pytest.mark.nightly)]
)
def test_the_parts_make_the_samples_of_the_whole(make):
    """Random numbers are off, since the whole graph draws its own. Another speaker has other samples."""
    values = {
        "input": np.random.default_rng(5).integers(3, 100, (1, LENGTH)),
        "input_lengths": np.array([LENGTH]),
        "scales": np.array([0.0, 1.0, 0.0], np.float32),
        "sid": np.array([0]),
        graph.NOISES[0]: np.ones((1, 2, LENGTH), np.float32),
        graph.NOISES[1]: np.ones((1, 192, 40 * LENGTH), np.float32),
    }
    whole = make()
    divided, expected = graph.divide(whole), run(whole, **values)
    frames = run(divided.acoustic, **values)
    np.testing.assert_allclose(run(divided.vocoder, frames=frames, sid=np.array([0])), expected, atol=1e-5)
    assert np.abs(expected).max() > 0.05
    if "sid" in {one.name for one in session(whole).get_inputs()}:
        assert len({run(divided.vocoder, frames=frames, sid=np.array([n])).tobytes() for n in range(3)}) == 3


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"RIFF" * 100, b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x04\x0a\x02\x22\x00", None]
)
def test_another_file_is_refused(content):
    with voice.packaged().open("rb") as file, pytest.raises(graph.UnknownGraph):
        graph.divide(file.read(10_000) if content is None else content)
