"""Faults injected into one loaded model: memory that runs out at odd places, numbers that are none. Who is hurt?"""

import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from asr_server.core.conftest import raises
from asr_server.core.errors import EngineFailed, EngineOutOfMemory, ModelUnavailable, TranscriptionFailed
from asr_server.engine import faults
from asr_server.engine.conftest import ends, loaded_qwen, qwen
from asr_server.engine.feature import OPENVINO, TORCH
from asr_server.engine.openvino.library import NumberFormats
from asr_server.engine.protocol import AS_SET, Option, Utterance
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.decoder import ArenaDecoder
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.schedule.job import Job
from asr_server.schedule.model import RowDone
from asr_server.schedule.thread import EngineThread

pytestmark = pytest.mark.torch

LOST = Utterance(np.full(16_000, np.nan, np.float32))


@pytest.mark.slow("loads the demonstration model")
@pytest.mark.parametrize(
    ("budget_mb", "repeated", "code", "words"),
    [(0, 3_000, "invalid_value", "too long for this model"), (2, 800, "engine_out_of_memory", "KV_BUDGET_MB")],
)
def test_a_row_that_can_never_be_run_is_refused_as_it_comes(speech, budget_mb, repeated, code, words):
    """Before its audio is encoded; with less context it is transcribed."""
    engine = loaded_qwen(budget_mb=budget_mb)
    with raises(code, match=words) as refusal:
        engine.admit(1, Utterance(speech, context="kitchen lights " * repeated))
    assert refusal.value.param == ("prompt" if code == "invalid_value" else None)
    assert ends(engine, Utterance(speech))[0][0].value.text


@pytest.mark.nightly
def test_a_session_that_cannot_be_kept_costs_nobody_an_answer(clips, alone, monkeypatch):
    """Memory runs out where a partial leaves its windows for the next one: all rows end with their own ids."""
    engine = loaded_qwen()
    monkeypatch.setattr(ArenaDecoder, "copy", Mock(side_effect=torch.OutOfMemoryError))
    found, _ = ends(engine, *(Utterance(clip, session=str(key)) for key, clip in enumerate(clips[:4])))
    assert [one.value.ids for one in found] == [answer.ids for answer in alone[:4]]
    assert len(engine.runtime.prefix_cache) == 0
    assert engine.free_slots == 4


@pytest.mark.parametrize(
    ("library", "owner", "name", "error", "kind"),
    [
        (TORCH, loading, "load", torch.OutOfMemoryError, EngineOutOfMemory),
        # No caller waits for what the first passes set up.
        (TORCH, ArenaDecoder, "prefill", torch.OutOfMemoryError, EngineOutOfMemory),
        (TORCH, torch, "from_numpy", lambda *_: torch.empty(1 << 50, dtype=torch.uint8), EngineOutOfMemory),
        (OPENVINO, NumberFormats, "compiled", RuntimeError("std::bad_alloc"), EngineOutOfMemory),
        (OPENVINO, NumberFormats, "compiled", RuntimeError("Check 'shapes' failed"), ModelUnavailable),
    ],
)
def test_a_model_that_does_not_fit_says_so(monkeypatch, library, owner, name, error, kind):
    """The error blames no audio, though torch on a CPU and OpenVINO raise a RuntimeError. Nothing is half loaded."""
    engine = qwen(runtime=library)
    monkeypatch.setattr(owner, name, Mock(side_effect=error))
    with pytest.raises(kind, match="No memory" if owner is ArenaDecoder else r"model|checkpoint"):
        engine.load()
    assert not engine.loaded


def _cuda(code, words):
    """Return torch's error of CUDA: the constructor takes the message, and the code is set from C++."""
    error = torch.AcceleratorError(
        f"CUDA error: {words}\nSearch for `cudaError' in https://docs.nvidia.com\nCUDA kernel errors might be "
        "asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    )
    error.error_code = code
    return error


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (_cuda(700, "an illegal memory access was encountered"), EngineFailed),
        (_cuda(99999, "one that a later version has"), EngineFailed),
        (RuntimeError("CUDA driver error: device-side assert triggered"), EngineFailed),
        (torch.AcceleratorError("HIP error: unspecified launch failure\nHIP kernel errors might be"), EngineFailed),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle`"), EngineFailed),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), EngineOutOfMemory),
        (_cuda(2, "out of memory"), EngineOutOfMemory),
        (RuntimeError("CUDA driver error: out of memory"), EngineOutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), EngineOutOfMemory),
        (MemoryError(), EngineOutOfMemory),
        (_cuda(900, "operation not permitted when stream is capturing"), TranscriptionFailed),
        (RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`"), TranscriptionFailed),
        (ZeroDivisionError(), TranscriptionFailed),
        (_cuda(209, "no kernel image is available for execution on the device"), ModelUnavailable),
    ],
    ids=str,
)
def test_what_an_error_of_torch_means(error, meaning):
    """Type, code and words, as torch 2.13 raises them, mean: fatal, memory, the row's own, or no usable GPU."""
    failure = faults.failure(error)
    assert type(failure) is meaning
    assert failure.__cause__ is error
    assert "\n" not in failure.message


@pytest.mark.parametrize(("owner", "name"), [(WindowedEncoder, "embeddings"), (ArenaDecoder, "drop")])
def test_a_lost_accelerator_is_nobodys_fault_and_ends_the_thread(speech, clips, monkeypatch, owner, name):
    """Wherever it shows: all jobs get the error with its words, those that wait too, and the thread ends."""
    engine, submitted = loaded_qwen(), threading.Event()

    def lost(*_, **__):
        submitted.wait()
        raise _cuda(700, "an illegal memory access was encountered")

    monkeypatch.setattr(owner, name, lost)
    thread = EngineThread(engine, idle_timeout_s=0)
    jobs = [thread.submit(Job(Utterance(clip))) for clip in (speech, *clips)]
    submitted.set()
    errors = [job.exception() for job in jobs]
    assert all(isinstance(error, EngineFailed) and "illegal memory access" in error.message for error in errors)
    while thread.snapshot().alive:
        time.sleep(0.01)
    assert "illegal memory access" in thread.snapshot().failure


@pytest.mark.nightly
def test_a_model_that_leaves_the_range_of_float16_is_loaded_in_float32(speech):
    """After three rows in sequence, or the first one if none was ever answered, unless DTYPE says float16."""
    for options, dtype in (((), "float32"), ((Option("dtype", True, "float16", AS_SET),), "float16")):
        engine = loaded_qwen(dtype="float16", options=options)
        assert engine.info.dtype == "float16"
        for _ in range(2):
            # Another format would do no better by the audio of one.
            assert isinstance(ends(engine, LOST, Utterance(speech))[0][1], RowDone)
        assert engine.loaded
        found, _ = ends(engine, Utterance(speech), LOST, LOST, LOST)
        assert (isinstance(found[0], RowDone), engine.loaded) == (True, dtype == "float16")
        engine.load()
        assert engine.info.dtype == dtype
        assert ends(engine, Utterance(speech))[0][0].value.text
    engine = loaded_qwen(dtype="float16")
    ends(engine, LOST)
    assert not engine.loaded
