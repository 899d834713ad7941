"""Environment variables that are not settings of a server, the process's directory for temporary files, and the options
of ONNX Runtime.

This module is separate from the settings because they need pydantic, which takes longer to import than most commands
and child processes take for everything else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnxruntime


def client_variable(name: str) -> str:
    """Return a variable of client commands, or "" if it is not set. It is read only from the process's environment: the
    `.env` file in the working directory belongs to a server, and even an invalid one must not affect a client."""
    return os.environ.get(name, "").strip()


def fake_engine_script() -> Path | None:
    """Return the file that scripts the answers and faults of the engines `MODEL_ID=fake` and `SPEECH=fake`, which only
    tests use."""
    name = os.environ.get("FAKE_ENGINE_SCRIPT")
    return Path(name) if name else None


def prefer(name: str, value: str) -> None:
    """Set an environment variable for libraries that are loaded later, unless the operator has set it."""
    os.environ.setdefault(name, value)


def onnx_session(
    model: Path | str | bytes,
    *,
    threads: int = 1,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    keeps_memory: bool = False,
) -> onnxruntime.InferenceSession:
    """Load a model, from a file or from bytes in ONNX's or ONNX Runtime's format, which the session keeps.

    Several threads may call its `run` at once; each call computes on at most `threads`, or on all cores with 0. With
    `keeps_memory` it is a few percent faster, and keeps the memory that the longest call took.
    Raises what onnxruntime raises: its errors have no common base class.
    """
    prefer("ORT_DISABLE_TELEMETRY", "1")  # must be set before the import, or onnxruntime's builds send telemetry
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that spin while they wait would take CPU time from the recogniser and from all other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = keeps_memory
    options.enable_mem_pattern = keeps_memory  # a memory plan for each combination of sizes
    options.log_severity_level = 3  # errors; its warnings are about graphs that are not ours
    return onnxruntime.InferenceSession(model, options, providers=list(providers))


def process_environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}


def restore_directory() -> None:
    """Recreate the directory for temporary files, accessible only to this user, if it has vanished during the run.

    It is always the directory that `tempfile` chose at its first use (`TMPDIR`, `/tmp`): another one may be on a
    smaller disk, which would fill. If it cannot be created, the code that then creates a file gets the error.
    """
    import tempfile  # imported here because client commands import this module

    from loguru import logger

    with suppress(OSError):
        directory = Path(tempfile.gettempdir())
        if not directory.exists():
            directory.mkdir(mode=0o700)
            logger.warning("directory for temporary files has vanished and is made again", directory=str(directory))
