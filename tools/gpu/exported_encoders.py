"""The encoder from exported files on the GPU: agreement with torch's, and milliseconds beside it."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

from asr_server import demo
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.features.encoders import exported_encoder, onnx_export, trt_encoder
from asr_server.features.encoders.exported_encoder import ExportedEncoder, OnnxEncoder, Target
from asr_server.features.encoders.trt_encoder import TrtEncoder
from tools.gpu.rig import Rig


@torch.inference_mode()
def measure(rig: Rig) -> dict[str, object]:
    """Export, load, compare and time each; what is not installed is named instead."""
    directory = demo.checkpoint_path() if rig.shape == "demo" else Path(rig.model_id)
    device = torch.device(rig.device)
    dtype = torch.float32 if rig.device == "cpu" else torch.bfloat16
    target, tower = Target(device, dtype, 1), _parts(directory).tower
    torch_encoder = WindowedEncoder(loading.load(directory, device=rig.device, dtype=dtype).tower)
    windows = exported_encoder.fixed_windows(torch_encoder)
    found: dict[str, object] = {"torch_ms": round(1000 * exported_encoder.seconds(torch_encoder, windows[0]), 2)}
    with tempfile.TemporaryDirectory() as folder:
        file, engine = Path(folder) / "encoder.onnx", Path(folder) / "encoder.engine"
        onnx_export.export(directory, file, int8=False)
        if rig.device == "cpu" or _installed_provider():
            found["onnx"] = _compared(OnnxEncoder(file, tower, target), directory)
        else:
            found["onnx"] = "onnxruntime-gpu is not installed"
        if rig.device == "cpu" or find_spec("tensorrt") is None:
            found["tensorrt"] = "needs a GPU" if rig.device == "cpu" else "tensorrt is not installed"
        else:
            trt_encoder.export(file, engine, max_windows=32)
            found["tensorrt"] = _compared(TrtEncoder(engine, tower, target), directory)
    return found


def _parts(directory: Path) -> loading.Parts:
    return loading.load(directory, device="cpu", dtype=torch.float32)


def _compared(encoder: ExportedEncoder, directory: Path) -> dict[str, object]:
    """Return the statement of the server, and the milliseconds of a window. Raises if it is too far from torch's."""
    stated = exported_encoder.compared(encoder, _parts(directory))
    took_s = exported_encoder.seconds(encoder, exported_encoder.fixed_windows(encoder)[0])
    return {"stated": stated, "ms": round(1000 * took_s, 2)}


def _installed_provider() -> bool:
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()
