"""Models out of a directory: what is taken, how it is mapped, and what is refused with which reason."""

from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from asr_server.features.speakers.diarization import filterbank, model_files, model_source
from asr_server.features.speakers.diarization.embedded_weights import WeightsError

RATE = 16_000
WESPEAKER = {"framework": "wespeaker", "sample_rate": 16_000, "output_dim": 80, "normalize_samples": 0}


def _save(path, nodes, shapes, *, constants=None, metadata=None):
    """A model with one input and one output, of these shapes."""
    given, returned = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip("xy", shapes, strict=True)
    )
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "tiny", [given], [returned], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {key: str(value) for key, value in (metadata or {}).items()})
    onnx.save(model, path)


def _segmentation(path, *, classes=7, pool=1600, metadata=None):
    """The class whose number is nearest to ten times the mean of the samples, for every tenth of a second."""
    levels = np.arange(classes, dtype=np.float32) / 10
    nodes = [
        helper.make_node("AveragePool", ["x"], ["means"], kernel_shape=[pool], strides=[pool]),
        helper.make_node("Transpose", ["means"], ["frames"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["frames", "weights"], ["scores"]),
        helper.make_node("Add", ["scores", "bias"], ["y"]),
    ]
    constants = {"weights": 2 * levels[None], "bias": -(levels**2)}
    _save(path, nodes, [["N", 1, "T"], ["N", "frames", classes]], constants=constants, metadata=metadata)


def _embedding(path, *, bands=80, metadata=None):
    """The loudest moment of each band."""
    nodes = [helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=0)]
    _save(path, nodes, [["N", "T", bands], ["N", bands]], metadata=metadata)


def _plda(directory, *, dimensions=80, projected=4):
    shapes = {"mean1": dimensions, "mean2": projected, "lda": (dimensions, projected)}
    np.savez(directory / "xvec_transform.npz", **{name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    np.savez(directory / "plda.npz", mu=np.zeros(projected), tr=np.eye(projected), psi=np.ones(projected))


@pytest.fixture
def directory(tmp_path):
    """Two models under the names that sherpa-onnx's releases have."""
    _segmentation(tmp_path / "model.onnx", metadata={"sample_rate": 16_000, "window_size": 160_000, "num_speakers": 3})
    _embedding(tmp_path / "embedding.onnx", metadata=WESPEAKER)
    return tmp_path


def test_the_seven_classes_are_the_sets_of_speakers(directory):
    """The sets are nobody, each of three alone, and each pair, in the order of pyannote's powerset."""
    models = model_files.load(str(directory))
    active = models.segmentation(np.repeat(np.arange(7, dtype=np.float32) / 10, RATE))
    sets = [set(np.flatnonzero(active[10 * second + 5]).tolist()) for second in range(7)]
    assert sets == [set(), {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}]


def test_there_is_a_plda_where_its_two_files_are(directory):
    """Voices are compared by their cosine alone without them."""
    assert model_files.load(str(directory)).plda is None
    _plda(directory)
    assert model_files.load(str(directory)).plda.variance.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("metadata", "recipe"),
    [
        ({}, filterbank.WESPEAKER),
        (WESPEAKER, filterbank.WESPEAKER),
        ({"framework": "3d-speaker", "normalize_samples": 1}, filterbank.THREE_D_SPEAKER),
    ],
)
def test_the_features_are_those_of_the_framework(directory, metadata, recipe):
    """A model without metadata is taken for one of WeSpeaker, whose own exports have none."""
    _embedding(directory / "embedding.onnx", metadata=metadata)
    sound = np.random.default_rng(1).normal(0, 0.1, RATE).astype(np.float32)
    voice = model_files.load(str(directory)).embedding(sound)
    assert np.array_equal(voice, filterbank.features(sound, recipe).max(axis=0))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: _segmentation(d / "model.onnx", classes=6), r"its output has the shape \(1, 100, 6\)"),
        (lambda d: _segmentation(d / "model.onnx", pool=16_000), "it divides 10 s into 10 frames"),
        (lambda d: _segmentation(d / "model.onnx", metadata={"num_speakers": 6}), "its num_speakers is 6; only 3"),
        (lambda d: (d / "model.onnx").write_bytes(b"nothing"), "model.onnx: onnxruntime cannot run it"),
        (lambda d: _embedding(d / "model.onnx"), r"model.onnx: its input has the shape \['N', 'T', 80\]"),
        (lambda d: _embedding(d / "embedding.onnx", bands=64), r"not \(any, any, 80\)"),
        (lambda d: _embedding(d / "embedding.onnx", metadata={"framework": "nemo"}), "it is a model of nemo"),
        (lambda d: _embedding(d / "embedding.onnx", metadata={"normalize_samples": 1}), "its normalize_samples is 1"),
        (lambda d: _plda(d, dimensions=256), "not an embedding of 80 numbers"),
        (lambda d: _plda(d) or (d / "plda.npz").write_bytes(b"PK"), "plda.npz: it lacks the arrays mu, tr, psi"),
        (lambda d: _plda(d) or (d / "plda.npz").unlink(), "it has only xvec_transform.npz"),
        (lambda d: (d / "embedding.onnx").unlink(), "it has neither embedding.onnx nor embedding.ort"),
    ],
)
def test_other_models_are_refused_with_the_reason(directory, change, reason):
    change(directory)
    with pytest.raises(WeightsError, match=reason):
        model_files.load(str(directory))


def test_a_hub_id_is_the_snapshot_in_the_cache(directory, monkeypatch):
    cached = Mock(return_value=str(directory))
    monkeypatch.setattr("huggingface_hub.snapshot_download", cached)
    assert model_source.located("o/voices") == str(directory)
    cached.assert_called_once_with("o/voices", local_files_only=True)
