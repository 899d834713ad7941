"""Models out of a directory, in the process that the server starts: the same turns, and errors that name the fault."""

import numpy as np
import pytest

from asr_server.core.errors import SpeakersUnavailable
from asr_server.features.speakers.diarization import embedded_weights, model_source
from asr_server.features.speakers.diarization.client import SpeakerClient
from E2Etest.drive import recordings
from E2Etest.drive.session import pcm_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(model_source.missing_package()), reason=model_source.missing_package()),
]


@pytest.fixture
def directory(tmp_path):
    """The bundled models as files: the networks in ONNX Runtime's format, the PLDA under pyannote's names."""
    segmentation, embedding, plda = embedded_weights.read()
    (tmp_path / "segmentation.ort").write_bytes(segmentation)
    (tmp_path / "embedding.ort").write_bytes(embedding)
    np.savez(tmp_path / "plda.npz", mu=plda.mean, tr=plda.transform, psi=plda.variance)
    before = {"mean1": plda.mean_before, "mean2": plda.mean_after, "lda": plda.discriminant}
    np.savez(tmp_path / "xvec_transform.npz", **before)
    return tmp_path


async def _told_apart(source, samples):
    client = SpeakerClient(str(source))
    try:
        return await client.diarize(samples)
    finally:
        await client.close()


@pytest.mark.nightly
async def test_models_as_files_give_the_same_turns_and_voices(directory):
    """Those that are bundled, written into a directory."""
    talk = [pcm_of(clip.path) for clip in recordings.real_clips("librivox_0870", "jfk")]
    samples = np.concatenate(talk) / np.float32(32_768)
    found, wanted = await _told_apart(directory, samples), await _told_apart(model_source.EMBEDDED, samples)
    assert found.turns == wanted.turns
    assert len(found.voice_prints) == 2
    assert np.array_equal(found.voice_prints, wanted.voice_prints)


@pytest.mark.nightly
async def test_a_request_names_the_fault_and_the_next_one_loads_again(directory):
    """The server need not be started anew after the directory was put right."""
    whole = (directory / "embedding.ort").read_bytes()
    (directory / "embedding.ort").write_bytes(whole[:1000])
    client = SpeakerClient(str(directory))
    try:
        with pytest.raises(SpeakersUnavailable, match=r"^SPEAKERS: embedding.ort: onnxruntime cannot run it"):
            await client.diarize(np.zeros(16_000, np.float32))
        assert client.pid is None
        (directory / "embedding.ort").write_bytes(whole)
        assert (await client.diarize(np.zeros(16_000, np.float32))).turns == ()
        assert client.pid is not None
    finally:
        await client.close()
    assert client.pid is None
