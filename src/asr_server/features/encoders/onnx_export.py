"""The windowed encoder as an ONNX file: a graph of up to `MOST_WINDOWS` windows, each of one to eight pieces.

Needs the packages of the extra `export`.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.torch.linear import Linear
from asr_server.features.encoders import exported_encoder
from asr_server.features.encoders.exported_encoder import (
    CPU,
    INPUTS,
    METADATA_KEY,
    OUTPUT,
    Deviation,
    OnnxEncoder,
    Origin,
)
from asr_server.features.encoders.options import tuned_for_causal

MOST_WINDOWS = 256
# The oldest operator set with GELU.
_OPSET = 20


class EncoderGraph(nn.Module):
    """The arithmetic of `WindowedEncoder` with the shapes of windows as inputs."""

    def __init__(self, encoder: WindowedEncoder) -> None:
        super().__init__()
        self._encoder = encoder

    def forward(self, pieces: torch.Tensor, widths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Pieces (W, P, 128, 100) to embeddings (W, P * 13, output_dim).

        `widths` (W,): frames of each piece that the convolutions may see. `tokens` (W,): tokens of the window.
        """
        windows, count = pieces.shape[:2]
        ends = widths[:, None].expand(windows, count).flatten()
        states = self._encoder.piece_states(self._encoder.images(pieces.flatten(0, 1).unsqueeze(1), ends))
        x = states.unflatten(0, (windows, count)).flatten(1, 2)
        seen = torch.arange(x.shape[1]) < tokens[:, None]
        return self._encoder.embeddings(x, seen[:, None, None, :])


def transposed(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return the layer as a product with a constant: ONNX Runtime's quantisation finds only such products."""
    matrix = weight.t().contiguous()
    return lambda x: torch.matmul(x, matrix) if bias is None else torch.matmul(x, matrix) + bias


def export(directory: Path, output: Path, *, int8: bool) -> Deviation:
    """Write the encoder of a checked checkpoint, and return how far ONNX Runtime's output is from torch's.

    `int8`: matrices in 8 bits; the convolutions stay in float32. If the output is too far from torch's, nothing is left
    at `output`. Raises `ModelUnavailable`, or `ImportError` if a package for the export is missing.
    """
    import onnx
    import onnxscript  # noqa: F401 - before anything is loaded: it is missing more often than present
    from onnxruntime.quantization import QuantType, quantize_dynamic

    if tuned_for_causal(directory):
        raise ModelUnavailable(f"Only encoders with windows are exported, and {directory.name} has a causal one.")
    parts = loading.load(directory, device="cpu", dtype=torch.float32)
    exact = exported_encoder.exact_encoder(parts, transposed)
    origin = Origin(exported_encoder.weights_hash(parts.files), "int8" if int8 else "float32")
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
        made = Path(folder) / "made.onnx"
        with torch.inference_mode():
            _write(exact, made)
        if int8:
            quantize_dynamic(made, made, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8)
        model = onnx.load(str(made))
        onnx.helper.set_model_props(model, {METADATA_KEY: json.dumps(origin._asdict())})
        onnx.save(model, str(made))
        target = CPU._replace(threads=torch.get_num_threads())
        found = exported_encoder.checked(OnnxEncoder(made, parts.tower, target), exact, str(output))
        os.replace(made, output)
    return found


def _write(encoder: WindowedEncoder, file: Path) -> None:
    pieces = torch.zeros(2, 3, 128, encoder.piece_frames)
    example = (pieces, torch.full((2,), encoder.piece_frames), torch.tensor([39, 30]))
    windows = torch.export.Dim("windows", min=1, max=MOST_WINDOWS)
    count = torch.export.Dim("pieces", min=1, max=encoder.window_frames // encoder.piece_frames)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about its own modules and about names of axes
        program: Any = torch.onnx.export(
            EncoderGraph(encoder).eval(),
            example,
            dynamo=True,
            opset_version=_OPSET,
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_shapes=({0: windows, 1: count}, {0: windows}, {0: windows}),
            verbose=False,
        )
    # One file holds at most 2 GiB; the larger released encoder has 1.3.
    program.save(str(file), external_data=False)
