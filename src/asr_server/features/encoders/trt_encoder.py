"""The encoder in TensorRT, from a file that `asr-server export tensorrt` made on a GPU of the same kind.

Not run yet: no machine with TensorRT was available. Written after the documentation of TensorRT 10 and 11.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr.windows import Window
from asr_server.engine.torch import memory
from asr_server.features.encoders import exported_encoder
from asr_server.features.encoders.exported_encoder import INPUTS, OUTPUT, ExportedEncoder, Origin, Target

# The first line of a file: JSON after this. TensorRT's own format has no place for what the engine was made from.
_MAGIC = b"asr-server encoder "
_MOST_HEADER_BYTES = 4096


def pack(origin: Origin, version: str, max_windows: int, engine: bytes) -> bytes:
    """Return the content of a file. `version`: TensorRT's."""
    header = {"origin": origin.dumps(), "tensorrt": version, "max_windows": max_windows}
    return _MAGIC + json.dumps(header).encode() + b"\n" + engine


def unpack(content: bytes, file: str) -> tuple[dict[str, Any], bytes]:
    """Return the header and the engine. Raises `ModelUnavailable`."""
    end = content[:_MOST_HEADER_BYTES].find(b"\n")
    try:
        if not content.startswith(_MAGIC) or end < 0:
            raise ValueError
        header = json.loads(content[len(_MAGIC) : end])
        return {**header, "origin": Origin.loads(header["origin"], file)}, content[end + 1 :]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelUnavailable(f"{file} is no encoder that `asr-server export tensorrt` made.") from error


class TrtEncoder(ExportedEncoder):
    """An encoder in TensorRT. `tower` is the SDK's, used for its division into windows alone. Raises
    `ModelUnavailable`."""

    def __init__(self, file: Path, tower: Any, target: Target) -> None:
        super().__init__(tower.n_window, tower.n_window_infer)
        self.file, self._target = file, target
        header, content = unpack(file.read_bytes(), str(file))
        self.origin: Origin = header["origin"]
        self._windows: int = header["max_windows"]
        with exported_encoder.failures(str(file)):
            import tensorrt

            if header["tensorrt"] != tensorrt.__version__:
                raise ModelUnavailable(
                    f"{file} was built by TensorRT {header['tensorrt']}, and {tensorrt.__version__} is installed: "
                    "build it again."
                )
            with torch.cuda.device(target.device):
                # Both have to live as long as the context.
                self._runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING))
                self._engine = self._runtime.deserialize_cuda_engine(content)
                if self._engine is None:
                    raise RuntimeError("it was built for another GPU or another TensorRT")
                self._context = self._engine.create_execution_context()

    def __call__(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        """Embeddings (tokens, output_dim) of each window."""
        found = list[torch.Tensor]()
        for start in range(0, len(windows), self._windows):
            self.on_layer()
            part = windows[start : start + self._windows]
            embeddings = self._run(exported_encoder.tensors(self, part)).to(self._target.dtype)
            found += [row[: window.tokens] for row, window in zip(embeddings, part, strict=True)]
        return found

    def _run(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        context, device = self._context, self._target.device
        given = [memory.upload(tensor, device) for tensor in inputs]
        for name, tensor in zip(INPUTS, given, strict=True):
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise RuntimeError(f"TensorRT refuses {name} of shape {tuple(tensor.shape)}")
            context.set_tensor_address(name, tensor.data_ptr())
        output = torch.empty(tuple(context.get_tensor_shape(OUTPUT)), device=device)
        context.set_tensor_address(OUTPUT, output.data_ptr())
        with torch.cuda.device(device):
            # On torch's stream: what comes after it waits for it, and torch gives `given` to nobody else before it ran.
            stream = torch.cuda.current_stream().cuda_stream
            if not context.execute_async_v3(stream):
                raise RuntimeError("TensorRT could not run the encoder")
        return output
