"""A voice's graph in two parts: the same samples as the whole, and files that are none."""

import numpy as np
import pytest

from asr_server.features.speech_output.engines.piper import graph, voice
from asr_server.features.speech_output.engines.piper.conftest import small_graph
from asr_server.features.speech_output.engines.piper.network import session

LENGTH = 41


def run(model, **values):
    loaded = session(model)
    (found,) = loaded.run(None, {one.name: values[one.name] for one in loaded.get_inputs()})
    return found


@pytest.fixture(scope="module", params=["one", "three", pytest.param("packaged", marks=pytest.mark.nightly)])
def whole(request):
    """A network of one speaker, one of three, and that of the packaged voice."""
    if request.param == "packaged":
        return voice.packaged().read_bytes()
    return small_graph(with_speaker=request.param == "three")


@pytest.fixture(scope="module")
def divided(whole):
    return graph.divide(whole)


def values(scale, **changes):
    random = np.random.default_rng(5)
    usual = {
        "input": random.integers(3, 100, (1, LENGTH)),
        "input_lengths": np.array([LENGTH]),
        "scales": np.array([scale, 1.0, scale], np.float32),
        "sid": np.array([0]),
        graph.NOISES[0]: random.standard_normal((1, 2, LENGTH), np.float32),
        graph.NOISES[1]: random.standard_normal((1, 192, 40 * LENGTH), np.float32),
    }
    return usual | changes


def test_the_parts_make_the_samples_of_the_whole(whole, divided):
    """The random numbers are left out, which the whole draws itself. Another speaker has other samples."""
    expected = run(whole, **values(0.0))
    frames = run(divided.acoustic, **values(0.0))
    np.testing.assert_allclose(run(divided.vocoder, frames=frames, sid=np.array([0])), expected, atol=1e-5)
    assert np.abs(expected).max() > 0.05
    if "sid" in {one.name for one in session(whole).get_inputs()}:
        assert len({run(divided.vocoder, frames=frames, sid=np.array([n])).tobytes() for n in range(3)}) == 3


def test_the_random_numbers_are_inputs(divided):
    """Each of the two changes the answer, and the same ones give the same, with any more of them: the number of frames
    is not known before."""
    first, usual = run(divided.acoustic, **values(0.7)), values(0.7)
    more = np.concatenate([usual[graph.NOISES[1]], np.ones((1, 192, 300), np.float32)], 2)
    np.testing.assert_array_equal(run(divided.acoustic, **values(0.7, **{graph.NOISES[1]: more})), first)
    for name in graph.NOISES:
        other = run(divided.acoustic, **values(0.7, **{name: -usual[name]}))
        assert other.shape != first.shape or np.abs(other - first).max() > 0.1


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"RIFF" * 100, b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x04\x0a\x02\x22\x00", b"\xff" * 64]
)
def test_another_file_is_refused(content):
    """A file that is cut off is refused, too."""
    with pytest.raises(graph.UnknownGraph):
        graph.divide(content)
    with voice.packaged().open("rb") as file, pytest.raises(graph.UnknownGraph):
        graph.divide(file.read(10_000 + len(content)))
