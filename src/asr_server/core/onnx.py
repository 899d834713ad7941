"""Models in ONNX Runtime, all with the same options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr_server.core.environment import prefer

if TYPE_CHECKING:
    import onnxruntime


def session(
    model: Path | str | bytes, *, threads: int = 1, providers: Sequence[Any] = ("CPUExecutionProvider",)
) -> onnxruntime.InferenceSession:
    """Load a model, from a file or from bytes in ONNX's or ONNX Runtime's format, which the session keeps.

    Several threads may call its `run` at once; each call computes on at most `threads`, or on all cores with 0.
    Raises what onnxruntime raises: its errors have no common base class.
    """
    prefer("ORT_DISABLE_TELEMETRY", "1")  # must be set before the import, or onnxruntime's builds send telemetry
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that spin while they wait would take CPU time from the recogniser and from all other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False  # it would keep the memory that the longest call took
    options.enable_mem_pattern = False  # it would keep a memory plan for each combination of sizes
    options.log_severity_level = 3  # errors; its warnings are about graphs that are not ours
    return onnxruntime.InferenceSession(model, options, providers=list(providers))
