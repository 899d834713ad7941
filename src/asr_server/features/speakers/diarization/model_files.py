"""The models that a source names: those that come with the server's packages, or files in a directory.

A directory has the segmentation and the speaker embedding as sherpa-onnx publishes them, and may have the PLDA as
pyannote publishes it with community-1.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.environment import onnx_session
from asr_server.features.speakers.diarization import embedded_weights
from asr_server.features.speakers.diarization.clustering import Plda
from asr_server.features.speakers.diarization.embedded_weights import WeightsError
from asr_server.features.speakers.diarization.filterbank import BANDS, THREE_D_SPEAKER, WESPEAKER
from asr_server.features.speakers.diarization.model_source import (
    EMBEDDED,
    EMBEDDINGS,
    PLDA,
    SEGMENTATIONS,
    TRANSFORM,
    first_of,
    missing_file,
)
from asr_server.features.speakers.diarization.models import (
    CLASSES,
    LOCAL_SPEAKERS,
    WINDOW_SAMPLES,
    Embedding,
    Segmentation,
)
from asr_server.features.speakers.diarization.windows import SpeakerModels

if TYPE_CHECKING:
    import onnxruntime

_RECIPES = {"wespeaker": WESPEAKER, "3d-speaker": THREE_D_SPEAKER}
# Frames of a window of 10 s. Longer frames would exceed a short turn; pyannote's models have 589 frames.
_FEWEST_FRAMES, _MOST_FRAMES = 100, 4000
_TRIED_FRAMES = (100, 200)  # one and two seconds
_MOST_CHARACTERS = 300  # of another library's error


def load(source: str) -> SpeakerModels:
    """Load the models. `source`: `embedded` or a directory. Raises `WeightsError`."""
    if source == EMBEDDED:
        segmentation, voice, plda = embedded_weights.read()
        return SpeakerModels(Segmentation(onnx_session(segmentation)), Embedding(onnx_session(voice)), plda)
    if reason := missing_file(source):
        raise WeightsError(reason)
    embedding, dimensions = _embedding(first_of(source, EMBEDDINGS))
    return SpeakerModels(_segmentation(first_of(source, SEGMENTATIONS)), embedding, _plda(source, dimensions))


def _segmentation(path: str) -> Segmentation:
    network = _network(path, (1, WINDOW_SAMPLES))
    _expect(path, network, {"sample_rate": SAMPLE_RATE, "window_size": WINDOW_SAMPLES, "num_speakers": LOCAL_SPEAKERS})
    found = _output(path, network, [_noise(1, 1, WINDOW_SAMPLES)])
    if found.ndim != 3 or found.shape[2] not in (CLASSES, LOCAL_SPEAKERS):
        raise WeightsError(f"{_name(path)}: its output has the shape {found.shape}, not (1, frames, {CLASSES})")
    if not _FEWEST_FRAMES <= found.shape[1] <= _MOST_FRAMES:
        raise WeightsError(f"{_name(path)}: it divides 10 s into {found.shape[1]} frames")
    return Segmentation(network)


def _embedding(path: str) -> tuple[Embedding, int]:
    """Return the model, and its number of dimensions."""
    network = _network(path, (None, BANDS))
    framework = network.get_modelmeta().custom_metadata_map.get("framework") or "wespeaker"  # its exports name none
    if framework not in _RECIPES:
        raise WeightsError(
            f"{_name(path)}: it is a model of {framework}; there are features for {' and '.join(_RECIPES)} only"
        )
    recipe = _RECIPES[framework]
    normalize_samples = int(recipe is THREE_D_SPEAKER)
    facts = {"sample_rate": SAMPLE_RATE, "normalize_samples": normalize_samples}
    _expect(path, network, facts | {"feature_normalize_type": "global-mean"})
    sizes = []
    for frames in _TRIED_FRAMES:
        given = [_noise(1, frames, BANDS), np.ones((1, frames), np.float32)]
        found = _output(path, network, given[: len(network.get_inputs())])
        if found.ndim != 2 or not np.isfinite(found).all():
            raise WeightsError(f"{_name(path)}: its output is no vector of finite numbers")
        sizes.append(found.shape[1])
    _expect(path, network, {"output_dim": sizes[0]})
    return Embedding(network, recipe), sizes[0]


def _plda(directory: str, dimensions: int) -> Plda | None:
    if not os.path.isfile(os.path.join(directory, PLDA)):
        return None
    mean_before, mean_after, discriminant = _arrays(directory, TRANSFORM, ("mean1", "mean2", "lda"))
    mean, transform, variance = _arrays(directory, PLDA, ("mu", "tr", "psi"))
    projected = len(mean_after) if mean_after.ndim == 1 else -1
    shapes = [array.shape for array in (mean_before, discriminant, mean, transform, variance)]
    wanted = [(dimensions,), (dimensions, projected), (projected,), (projected, projected), (projected,)]
    if shapes != wanted or not (variance > 0).all():
        raise WeightsError(f"{PLDA} and {TRANSFORM} do not fit together, or not an embedding of {dimensions} numbers")
    return Plda(mean_before, discriminant, mean_after, mean, transform, variance)


def _arrays(directory: str, name: str, keys: Sequence[str]) -> list[NDArray[np.float64]]:
    try:
        with np.load(os.path.join(directory, name), allow_pickle=False) as content:
            found = [np.asarray(content[key], np.float64) for key in keys]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(f"{name}: it lacks the arrays {', '.join(keys)}") from error
    if not all(np.isfinite(array).all() for array in found):
        raise WeightsError(f"{name}: it has numbers that are not finite")
    return found


def _network(path: str, last: tuple[int | None, int | None]) -> onnxruntime.InferenceSession:
    """Return the model, whose first input must have three dimensions. `last`: the required sizes of the last two, None
    for any size."""
    try:
        network = onnx_session(path)
    except Exception as error:  # onnxruntime's errors have no common class
        raise _unusable(path, error) from error
    shape = network.get_inputs()[0].shape
    differs = [want and isinstance(have, int) and have != want for have, want in zip(shape[1:], last, strict=False)]
    if len(shape) != 3 or any(differs):
        first, second = (size or "any" for size in last)
        raise WeightsError(f"{_name(path)}: its input has the shape {shape}, not (any, {first}, {second})")
    return network


def _expect(path: str, network: onnxruntime.InferenceSession, expected: dict[str, int | str]) -> None:
    """Refuse a model whose metadata contradict `expected`. Missing metadata count as fulfilled."""
    known = network.get_modelmeta().custom_metadata_map
    for key, value in expected.items():
        if known.get(key) and known[key] != str(value):
            raise WeightsError(f"{_name(path)}: its {key} is {known[key]}; only {value} is supported")


def _output(path: str, network: onnxruntime.InferenceSession, given: Sequence[NDArray[np.float32]]) -> Any:
    names = [each.name for each in network.get_inputs()]
    try:
        return network.run(None, dict(zip(names, given, strict=True)))[0]
    except Exception as error:
        raise _unusable(path, error) from error


def _noise(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32)


def _name(path: str) -> str:
    return os.path.basename(path)


def _unusable(path: str, error: Exception) -> WeightsError:
    message = " ".join(str(error).replace(path, _name(path)).split())[:_MOST_CHARACTERS]
    return WeightsError(f"{_name(path)}: onnxruntime cannot run it ({message})")
