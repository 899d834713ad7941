"""The encoder in ONNX Runtime, from a file that `asr-server export onnx` made. Torch's weights are not kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from asr_server.core.environment import prefer
from asr_server.engine.qwen_asr.windows import Window
from asr_server.engine.torch import memory
from asr_server.features.encoders import exported_encoder
from asr_server.features.encoders.exported_encoder import INPUTS, METADATA_KEY, ExportedEncoder, Origin, Target

# Windows of one call on a GPU: the first convolution of a window of the released shape takes 50 MB in float32.
_GPU_WINDOWS = 16


class OnnxEncoder(ExportedEncoder):
    """An encoder in onnxruntime. `tower` is the SDK's, used for its division into windows alone.

    On a CPU each window is a call of its own: a larger call is not faster, and the numbers of a window are those that
    it has alone, also where 8-bit activations have one scale for a whole call. Raises `ModelUnavailable`.
    """

    def __init__(self, file: Path, tower: Any, target: Target) -> None:
        super().__init__(tower.n_window, tower.n_window_infer)
        self.file, self._target = file, target
        self._windows = 1 if target.device.type == "cpu" else _GPU_WINDOWS
        with exported_encoder.failures(str(file)):
            self._session = _session(file, target)
            self.origin = Origin.loads(
                self._session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, ""), str(file)
            )

    def __call__(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        """Embeddings (tokens, output_dim) of each window."""
        found = list[torch.Tensor]()
        for start in range(0, len(windows), self._windows):
            self.on_layer()
            part = windows[start : start + self._windows]
            inputs = exported_encoder.tensors(self, part)
            (rows,) = self._session.run(None, {name: own.numpy() for name, own in zip(INPUTS, inputs, strict=True)})
            embeddings = memory.upload(torch.from_numpy(rows).to(self._target.dtype), self._target.device)
            found += [row[: window.tokens] for row, window in zip(embeddings, part, strict=True)]
        return found


def origin(file: Path) -> Origin:
    """Return the origin that a file states. Raises `ModelUnavailable`."""
    with exported_encoder.failures(str(file)):
        metadata = _session(file, Target(torch.device("cpu"), torch.float32, 1)).get_modelmeta().custom_metadata_map
    return Origin.loads(metadata.get(METADATA_KEY, ""), str(file))


def _session(file: Path, target: Target) -> Any:
    prefer("ORT_DISABLE_TELEMETRY", "1")  # must be set before the import, or its builds report to their maker
    import onnxruntime

    device, options = target.device, onnxruntime.SessionOptions()
    options.intra_op_num_threads = target.threads
    # Waiting threads that spin take the processor from the decoder and from everybody else.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.type == "cuda":
        # TF32 would round the inputs of products to 10 bits.
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": str(device.index or 0), "use_tf32": "0"}))
    session = onnxruntime.InferenceSession(str(file), options, providers=providers)
    if device.type == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise RuntimeError("ONNX Runtime cannot use the GPU here")
    return session
