"""The meaning of an exception from a pass: a fault of its row, too little memory, or a lost accelerator."""

from __future__ import annotations

import re
import traceback

from asr_server.core.errors import AsrError, EngineFailed, EngineOutOfMemory, ModelUnavailable, TranscriptionFailed

# Codes of cudaError_t in `torch.AcceleratorError`; HIP's are the same. Out of memory, not in torch's allocator:
_MEMORY = 2
# A call that was refused before anything ran: wrong arguments, too many resources for one launch, not supported, or not
# possible while a graph is recorded.
_REFUSED = frozenset({1, 9, 98, 701, 720, 801, *range(900, 909)})
# No usable device: not initialised, driver too old, busy, absent, no kernels for it, mismatched versions.
_UNAVAILABLE = frozenset({3, 35, 46, 100, 101, 209, 802, 803, 804})
# All other codes, such as 700 (illegal memory access), 710 (assertion in a kernel), 719 (launch failure) and 214 (ECC):
# according to CUDA's reference, every later call returns the same error, and the process must be restarted.

# Matched by name, since torch need not be installed.
_TORCHS_OUT_OF_MEMORY = "OutOfMemoryError"
# Errors of cuBLAS and cuDNN are RuntimeErrors. They fail to create their handles if memory is short.
_STATUS = re.compile(r"CU(?:BLAS|DNN)_STATUS_(\w+)")
_STATUS_MEMORY = frozenset({"ALLOC_FAILED", "NOT_INITIALIZED"})
_STATUS_LOST = frozenset({"EXECUTION_FAILED", "INTERNAL_ERROR", "MAPPING_ERROR"})
# From torch's allocator of host memory, and from C++ for all other allocations.
_HOST_MEMORY = re.compile(r"can't allocate memory|std::bad_alloc")
_DEVICE_ERROR = re.compile(r"(?:CUDA|HIP)(?: driver)? error: (.+)")
_AGAIN = "The server starts again; try again."


def failure(error: BaseException, subject: str = "this audio") -> AsrError:
    """Return the error for the callers of a failed pass: `EngineFailed` if no later pass of this process can succeed.

    `error` becomes its cause. A note replaces its traceback, whose frames would keep all tensors of the failed pass.
    """
    if isinstance(error, AsrError):
        return error
    found = _classified(error, subject)
    found.__cause__ = error
    _release(error)
    return found


def load_failure(error: Exception) -> AsrError:
    """Return the error of a load that raised `error`."""
    found = failure(error, "the model")
    if isinstance(found, EngineOutOfMemory):
        return EngineOutOfMemory("No memory is left for the model; free some or choose a smaller one.")
    if isinstance(found, TranscriptionFailed):
        return ModelUnavailable(f"The model cannot be loaded ({type(error).__name__}); the log has the details.")
    return found


def _release(error: BaseException | None) -> None:
    """Replace the tracebacks of an error and its causes by notes with their text. `traceback.clear_frames` is not
    enough: the frames of closures keep the objects that the closures refer to."""
    while error is not None and error.__traceback__ is not None:
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _classified(error: BaseException, subject: str) -> AsrError:
    no_memory = EngineOutOfMemory(f"No memory is left for {subject}.")
    if isinstance(error, MemoryError) or type(error).__name__ == _TORCHS_OUT_OF_MEMORY:
        return no_memory
    text = str(error)
    device_error = _DEVICE_ERROR.search(text)
    if isinstance(error, RuntimeError):
        if _HOST_MEMORY.search(text):
            return no_memory
        if status := _STATUS.search(text):
            if status[1] in _STATUS_MEMORY:
                return no_memory
            if status[1] in _STATUS_LOST:
                return EngineFailed(f"The accelerator failed ({status[0]}). {_AGAIN}")
        elif device_error:
            return _of_device(device_error[1], getattr(error, "error_code", None), no_memory)
    return TranscriptionFailed(f"The engine failed on {subject}.")


def _of_device(words: str, code: int | None, no_memory: AsrError) -> AsrError:
    """Classify a device error by its code, or by its message for CUDA driver errors, which have no code."""
    if code == _MEMORY or (code is None and "out of memory" in words):
        return no_memory
    if code in _REFUSED:
        return TranscriptionFailed(f"The accelerator refused this audio ({words}).")
    if code in _UNAVAILABLE:
        return ModelUnavailable(f"The GPU cannot be used: {words}.")
    return EngineFailed(f"The accelerator failed ({words}). {_AGAIN}")
