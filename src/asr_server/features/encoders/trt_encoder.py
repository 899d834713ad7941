"""The encoder in TensorRT: an engine for this machine's GPU, built from a file of `asr-server export onnx`.

Not run yet: no machine with TensorRT was available. Written by the documentation of TensorRT 10 and 11.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.torch import memory
from asr_server.features.encoders import exported_encoder
from asr_server.features.encoders.exported_encoder import INPUTS, OUTPUT, ExportedEncoder, Origin, Target
from asr_server.features.encoders.options import TENSORRT_MAGIC

MOST_WINDOWS = 256
# A window consists of pieces of 100 frames with 128 bins.
_PIECES, _BINS, _FRAMES = 8, 128, 100
# The windows of half a minute. The engine is fastest with this many.
_USUAL_WINDOWS = 4

Shape = tuple[int, ...]


def unpack(content: bytes, file: str) -> tuple[dict[str, Any], Origin, bytes]:
    """Return the header, the origin and the engine. Raises `ModelUnavailable`."""
    try:
        if not content.startswith(TENSORRT_MAGIC):
            raise ValueError
        first, _, engine = content.partition(b"\n")
        header = json.loads(first.removeprefix(TENSORRT_MAGIC))
        return header, Origin(**header["origin"]), engine
    except (ValueError, KeyError, TypeError) as error:
        raise ModelUnavailable(f"{file} is no encoder that `asr-server export tensorrt` made.") from error


class TrtEncoder(ExportedEncoder):
    """An encoder in TensorRT. Raises `ModelUnavailable`."""

    def __init__(self, file: Path, tower: Any, target: Target) -> None:
        super().__init__(file, tower, target)
        with exported_encoder.failures(file):
            import tensorrt
        header, self.origin, content = unpack(file.read_bytes(), str(file))
        self.most_windows, version = header["max_windows"], header["tensorrt"]
        if version != tensorrt.__version__:
            raise ModelUnavailable(
                f"{file} was built by TensorRT {version}, and {tensorrt.__version__} is installed: build it again."
            )
        with exported_encoder.failures(file), torch.cuda.device(target.device):
            # Both have to live as long as the context.
            self._runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING))
            self._engine = self._runtime.deserialize_cuda_engine(content)
            if self._engine is None:
                raise RuntimeError("it was built for another GPU or another TensorRT")
            self._context = self._engine.create_execution_context()

    def run(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        context, device = self._context, self.target.device
        given = [memory.upload(tensor, device) for tensor in inputs]
        for name, tensor in zip(INPUTS, given, strict=True):
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise RuntimeError(f"TensorRT refuses {name} of shape {tuple(tensor.shape)}")
            context.set_tensor_address(name, tensor.data_ptr())
        output = torch.empty(tuple(context.get_tensor_shape(OUTPUT)), device=device)
        context.set_tensor_address(OUTPUT, output.data_ptr())
        with torch.cuda.device(device):
            # On torch's stream: later work waits for it, and torch does not reuse the memory of `given` before it ran.
            if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
                raise RuntimeError("TensorRT could not run the encoder")
        return output


def export(onnx_file: Path, output: Path, *, max_windows: int) -> None:
    """Build the engine; takes minutes. Raises `ModelUnavailable`, `ImportError` if tensorrt is missing."""
    import tensorrt

    _, origin = exported_encoder.open_encoder(onnx_file)
    if origin.format != "float32":
        raise ModelUnavailable(f"{onnx_file} is in {origin.format}: TensorRT needs one that was made without --int8.")
    logger = tensorrt.Logger(tensorrt.Logger.WARNING)
    builder = tensorrt.Builder(logger)
    network = builder.create_network(0)
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse(onnx_file.read_bytes()):
        reasons = "; ".join(parser.get_error(number).desc() for number in range(parser.num_errors))
        raise ModelUnavailable(f"TensorRT does not read {onnx_file}: {reasons}")
    config = builder.create_builder_config()
    # TF32 would round the inputs of products to 10 bits.
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    shapes = builder.create_optimization_profile()
    for name, limits in profile(max_windows).items():
        shapes.set_shape(name, *limits)
    config.add_optimization_profile(shapes)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise ModelUnavailable(f"TensorRT could not build an engine from {onnx_file}; its messages are above.")
    header = {"origin": origin._asdict(), "tensorrt": tensorrt.__version__, "max_windows": max_windows}
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
        fresh = Path(folder, "engine")
        fresh.write_bytes(TENSORRT_MAGIC + json.dumps(header).encode() + b"\n" + bytes(engine))
        os.replace(fresh, output)


def profile(max_windows: int) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Return the least, the usual and the largest shape of each input."""
    usual = min(_USUAL_WINDOWS, max_windows)
    rows: tuple[Shape, Shape, Shape] = ((1,), (usual,), (max_windows,))
    frames = _BINS, _FRAMES
    pieces = (1, 1, *frames), (usual, _PIECES, *frames), (max_windows, _PIECES, *frames)
    return dict(zip(INPUTS, (pieces, rows, rows), strict=True))
