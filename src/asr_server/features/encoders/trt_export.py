"""The encoder for TensorRT: an engine for this machine's GPU, built from a file of `asr-server export onnx`.

Not run yet: no machine with TensorRT was available. Written after the documentation of TensorRT 10 and 11.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from asr_server.core.errors import ModelUnavailable
from asr_server.features.encoders import onnx_encoder
from asr_server.features.encoders.exported_encoder import INPUTS
from asr_server.features.encoders.trt_encoder import pack

MOST_WINDOWS = 256
# A window consists of pieces of 100 frames with 128 bins.
_PIECES, _BINS, _FRAMES = 8, 128, 100
# A clip of half a minute: the engine is fastest with as many windows.
_USUAL_WINDOWS = 4

Shape = tuple[int, ...]


def export(onnx_file: Path, output: Path, *, max_windows: int) -> None:
    """Build the engine; takes minutes. Raises `ModelUnavailable`, `ImportError` where tensorrt is missing."""
    import tensorrt

    origin = onnx_encoder.origin(onnx_file)
    if origin.format != "float32":
        raise ModelUnavailable(f"{onnx_file} is in {origin.format}: TensorRT needs one that was made without --int8.")
    logger = tensorrt.Logger(tensorrt.Logger.WARNING)
    builder = tensorrt.Builder(logger)
    network = builder.create_network(0)
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse(onnx_file.read_bytes()):
        reasons = "; ".join(parser.get_error(number).desc() for number in range(parser.num_errors))
        raise ModelUnavailable(f"TensorRT does not read {onnx_file}: {reasons}")
    engine = builder.build_serialized_network(network, _config(tensorrt, builder, max_windows))
    if engine is None:
        raise ModelUnavailable(f"TensorRT could not build an engine from {onnx_file}; its messages are above.")
    fresh = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        fresh.write_bytes(pack(origin, tensorrt.__version__, max_windows, bytes(engine)))
        os.replace(fresh, output)
    finally:
        fresh.unlink(missing_ok=True)


def profile(max_windows: int) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Return the least, the usual and the largest shape of each input."""
    usual = min(_USUAL_WINDOWS, max_windows)
    pieces = tuple(
        (windows, count, _BINS, _FRAMES) for windows, count in ((1, 1), (usual, _PIECES), (max_windows, _PIECES))
    )
    rows: tuple[Shape, Shape, Shape] = ((1,), (usual,), (max_windows,))
    return dict(zip(INPUTS, ((pieces[0], pieces[1], pieces[2]), rows, rows), strict=True))


def _config(tensorrt: Any, builder: Any, max_windows: int) -> Any:
    config = builder.create_builder_config()
    # TF32 would round the inputs of products to 10 bits.
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    shapes = builder.create_optimization_profile()
    for name, (least, usual, largest) in profile(max_windows).items():
        shapes.set_shape(name, least, usual, largest)
    config.add_optimization_profile(shapes)
    return config
