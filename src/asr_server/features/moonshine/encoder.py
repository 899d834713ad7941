"""The encoder: the package's own graph in ONNX Runtime, one clip at a time.

The graph quantizes the activations of a whole call together, and clips that share a call would change each other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr_server.core.settings import prefer

# The first convolutions reach over this many samples (127, then 7 of 64 apart, then 3 of 192): shorter audio is padded.
_LEAST_SAMPLES = 895
# Samples that become one state: the strides 64, 3 and 2.
SAMPLES_PER_STATE = 384


class MoonshineEncoder:
    """Loads the graph. Raises what ONNX Runtime raises."""

    def __init__(self, path: Path) -> None:
        prefer("ORT_DISABLE_TELEMETRY", "1")  # must be set before the import, or its builds report to their maker
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Waiting threads that spin take the processor from the decoder and from everybody else.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Memory that was needed once for the longest clip would be kept for ever.
        options.enable_cpu_mem_arena = False
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def encode(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 (n,), 16 kHz, in [-1, 1], to states (frames, d)."""
        padded = np.pad(audio, (0, max(0, _LEAST_SAMPLES - len(audio))))
        inputs = {"input_values": padded[None], "attention_mask": np.ones((1, len(padded)), np.int64)}
        states: NDArray[np.float32] = self._session.run(["last_hidden_state"], inputs)[0][0]
        return states
