"""The models that a source names: those that come with the server's packages, or files in a directory."""

from __future__ import annotations

from asr_server.speakers import embedded_weights, models
from asr_server.speakers.clustering import Plda
from asr_server.speakers.windows import Models


def load(source: str) -> Models:
    """Raises `WeightsError`, or what onnxruntime raises."""
    weights = embedded_weights.read()
    return Models(
        models.Segmentation(models.session(weights.segmentation)),
        models.Embedding(models.session(weights.embedding)),
        Plda(weights.plda),
    )
