"""A voice's graph in two parts: the same samples as the whole, and files that are none."""

import numpy as np
import onnxruntime
import pytest

from asr_server.features.speech_output.engines.piper import graph, voice

LENGTH = 41


def run(model, **values):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {one.name: values[one.name] for one in session.get_inputs()})
    return found


@pytest.fixture(scope="module")
def divided():
    return graph.divide(voice.packaged().read_bytes())


def values(scale):
    random = np.random.default_rng(5)
    return {
        "input": random.integers(3, 100, (1, LENGTH)),
        "input_lengths": np.array([LENGTH]),
        "scales": np.array([scale, 1.0, scale], np.float32),
        graph.NOISES[0]: random.standard_normal((1, 2, LENGTH), np.float32),
        graph.NOISES[1]: random.standard_normal((1, 192, 40 * LENGTH), np.float32),
    }


@pytest.mark.nightly
def test_the_parts_make_the_samples_of_the_whole(divided):
    """The random numbers are left out, which the whole draws itself."""
    whole = run(voice.packaged().read_bytes(), **values(0.0))
    frames = run(divided.acoustic, **values(0.0))
    np.testing.assert_allclose(run(divided.vocoder, frames=frames), whole, atol=1e-5)
    assert np.abs(whole).max() > 0.05


@pytest.mark.nightly
def test_the_random_numbers_are_inputs(divided):
    """Each of the two changes the answer, and the same ones give the same."""
    first = run(divided.acoustic, **values(0.7))
    np.testing.assert_array_equal(run(divided.acoustic, **values(0.7)), first)
    for name in graph.NOISES:
        changed = values(0.7)
        changed[name] = -changed[name]
        other = run(divided.acoustic, **changed)
        assert other.shape != first.shape or np.abs(other - first).max() > 0.1


@pytest.mark.nightly
def test_numbers_beyond_those_that_are_needed_change_nothing(divided):
    """The number of frames is not known before."""
    more = values(0.7)
    more[graph.NOISES[1]] = np.concatenate([more[graph.NOISES[1]], np.ones((1, 192, 300), np.float32)], 2)
    np.testing.assert_array_equal(run(divided.acoustic, **more), run(divided.acoustic, **values(0.7)))


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"RIFF" * 100, b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x04\x0a\x02\x22\x00", b"\xff" * 64]
)
def test_another_file_is_refused(content):
    """A file that is cut off is refused, too."""
    with pytest.raises(graph.UnknownGraph):
        graph.divide(content)
    with pytest.raises(graph.UnknownGraph):
        graph.divide(voice.packaged().read_bytes()[: 10_000 + len(content)])
