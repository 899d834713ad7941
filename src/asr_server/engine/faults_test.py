"""Faults injected into one loaded model: memory that runs out at odd places, numbers that are none. Who is hurt?"""

import numpy as np
import pytest
import torch

from asr_server.core.errors import EngineFailed, EngineOutOfMemory, ModelUnavailable, TranscriptionFailed
from asr_server.engine import faults
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import AS_SET, Option, Utterance
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.schedule.job import Job
from asr_server.schedule.ports import RowDelta, RowDone
from asr_server.schedule.thread import EngineThread

pytestmark = pytest.mark.torch


@pytest.fixture
def engine():
    made = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 0, ()))
    made.load()
    return made


def _ended(engine, utterances):
    """Outcomes by key of utterances admitted together."""
    for key, utterance in enumerate(utterances):
        engine.admit(key, utterance)
    found = {}
    for _ in range(400):
        found |= {outcome.key: outcome for outcome in engine.step() if not isinstance(outcome, RowDelta)}
        if len(found) == len(utterances):
            break
    return [found[key] for key in range(len(utterances))]


def test_a_row_that_needs_more_than_the_whole_arena_is_refused(speech):
    """The row is refused as it comes, before its audio is encoded; with less context it is transcribed."""
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 2, ()))
    engine.load()
    with pytest.raises(EngineOutOfMemory, match="KV_BUDGET_MB"):
        engine.admit(1, Utterance(speech, context="kitchen lights " * 800))
    (outcome,) = _ended(engine, [Utterance(speech)])
    assert outcome.value.text


@pytest.mark.nightly
def test_a_session_that_cannot_be_kept_costs_nobody_an_answer(engine, clips, alone, monkeypatch):
    """Memory runs out where a partial leaves its windows for the next one: all rows end with their own ids."""

    def copy(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(engine._runtime.decoder.arena, "copy", copy)
    asked = [Utterance(clip, session=str(key)) for key, clip in enumerate(clips[:4])]
    assert [outcome.value.ids for outcome in _ended(engine, asked)] == [one.ids for one in alone[:4]]
    assert len(engine._runtime.prefix_cache) == 0
    assert engine.free_slots == 4


@pytest.mark.nightly
def test_numbers_out_of_range_fail_their_row_and_leave_nothing_behind(engine, speech, clips, alone):
    """A row whose logits are no numbers fails, and the next rows in all slots have their own ids."""
    lost = Utterance(np.full(len(speech), np.nan, np.float32))
    outcomes = _ended(engine, [Utterance(speech), lost, Utterance(clips[1]), lost])
    assert [isinstance(outcomes[key].error, TranscriptionFailed) for key in (1, 3)] == [True, True]
    assert [outcomes[key].value.ids for key in (0, 2)] == [alone[0].ids, alone[1].ids]
    after = _ended(engine, [Utterance(clip) for clip in clips[:4]])
    assert [outcome.value.ids for outcome in after] == [one.ids for one in alone[:4]]


@pytest.mark.nightly
@pytest.mark.parametrize("temperature", [1e-3, 1e-45, 5e-324])
def test_hardly_any_temperature_is_greedy_and_disturbs_nobody(engine, speech, alone, temperature):
    """The least temperature that a number can say gives the greedy ids, and fails no pass."""
    outcomes = _ended(engine, [Utterance(speech), Utterance(speech, temperature=temperature)])
    assert [outcome.value.ids for outcome in outcomes] == [alone[0].ids] * 2


def test_a_model_that_does_not_fit_says_so(monkeypatch):
    """Memory that runs out while loading is no fault of the audio that waited for it; nothing is half loaded."""

    def full(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(loading, "load", full)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 0, ()))
    with pytest.raises(EngineOutOfMemory, match="model"):
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


def _cpu_allocation():
    try:
        torch.empty(1 << 50, dtype=torch.uint8)
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (_cuda(700, "an illegal memory access was encountered"), EngineFailed),
        (_cuda(710, "device-side assert triggered"), EngineFailed),
        (_cuda(719, "unspecified launch failure"), EngineFailed),
        (_cuda(214, "uncorrectable ECC error encountered"), EngineFailed),
        (_cuda(99999, "one that a later version has"), EngineFailed),
        (RuntimeError("CUDA driver error: device-side assert triggered"), EngineFailed),
        (torch.AcceleratorError("HIP error: unspecified launch failure\nHIP kernel errors might be"), EngineFailed),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle`"), EngineFailed),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), EngineFailed),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), EngineOutOfMemory),
        (_cuda(2, "out of memory"), EngineOutOfMemory),
        (RuntimeError("CUDA driver error: out of memory"), EngineOutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), EngineOutOfMemory),
        (MemoryError(), EngineOutOfMemory),
        (_cpu_allocation(), EngineOutOfMemory),
        (_cuda(1, "invalid argument"), TranscriptionFailed),
        (_cuda(900, "operation not permitted when stream is capturing"), TranscriptionFailed),
        (_cuda(908, "attempt to terminate a thread-local capture from another thread"), TranscriptionFailed),
        (_cuda(701, "too many resources requested for launch"), TranscriptionFailed),
        (RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`"), TranscriptionFailed),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), TranscriptionFailed),
        (ZeroDivisionError(), TranscriptionFailed),
        (_cuda(46, "CUDA-capable device(s) is/are busy or unavailable"), ModelUnavailable),
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


def _lost(*_, **__):
    raise _cuda(700, "an illegal memory access was encountered")


@pytest.mark.parametrize("place", ["encoder", "prefill", "step", "drop"])
def test_a_lost_accelerator_is_nobodys_fault_and_ends_the_thread(engine, speech, clips, monkeypatch, place):
    """Wherever it shows: all jobs get the error with its words, those that wait too, and the thread ends."""
    runtime = engine._runtime
    if place == "encoder":
        monkeypatch.setattr(runtime._encoder, "_attend", _lost)
    else:
        monkeypatch.setattr(runtime.decoder, place, _lost)
    thread = EngineThread(engine, idle_timeout_s=0, start=False)
    jobs = [thread.submit(Job(Utterance(clip))) for clip in (speech, *clips)]
    thread._loop()
    errors = [job.exception(0) for job in jobs]
    assert all(isinstance(error, EngineFailed) and "illegal memory access" in error.message for error in errors)
    assert not thread.snapshot().alive
    assert "illegal memory access" in thread.snapshot().failure


def test_memory_that_the_allocator_of_the_cpu_refuses_is_no_damaged_checkpoint(monkeypatch):
    """torch raises a RuntimeError for it while the weights are read."""

    def full(*_, **__):
        torch.empty(1 << 50, dtype=torch.uint8)

    monkeypatch.setattr(loading, "_tensor", full)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 0, ()))
    with pytest.raises(EngineOutOfMemory, match="model"):
        engine.load()


@pytest.mark.nightly
def test_a_row_that_leaves_in_the_middle_of_its_prompt_leaves_nothing_behind(make_engine, run, speech, monkeypatch):
    """Numbers out of range in its slot would spoil the next row there: a mask does not hide them."""
    engine = make_engine(1)
    monkeypatch.setattr(engine._runtime.prefill_policy, "tokens", lambda limit_s: 120)
    engine.admit(7, Utterance(np.full(12 * 16_000, np.nan, np.float32)))
    list(engine.step())
    (row,) = engine._runtime.decoder.rows
    assert row.input is not None
    assert row.length > 60
    engine.drop(7)
    (alone,) = run(make_engine(8), [Utterance(speech)])
    assert run(engine, [Utterance(speech)])[0].ids == alone.ids


@pytest.mark.nightly
def test_a_model_that_leaves_the_range_of_float16_is_loaded_in_float32(speech):
    """After three rows in sequence, once the row beside them has ended, and not where DTYPE says float16."""
    lost = Utterance(np.full(16_000, np.nan, np.float32))
    for options, dtype in (((), "float32"), ((Option("dtype", True, "float16", AS_SET),), "float16")):
        engine = QwenEngine(Plan("qwen", "demo", "cpu", "float16", 4, 0, options))
        engine.load()
        assert engine.info.dtype == "float16"
        for _ in range(2):
            outcomes = _ended(engine, [lost, Utterance(speech)])
            assert isinstance(outcomes[1], RowDone)  # another format would do no better by its audio
        assert engine.loaded
        outcomes = _ended(engine, [Utterance(speech), lost, lost, lost])
        assert (isinstance(outcomes[0], RowDone), engine.loaded) == (True, dtype == "float16")
        engine.load()
        assert engine.info.dtype == dtype
        (outcome,) = _ended(engine, [Utterance(speech)])
        assert outcome.value.text


@pytest.mark.nightly
def test_the_first_row_is_enough_where_none_was_ever_answered(speech):
    """Weights that overflow do so with any audio."""
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float16", 4, 0, ()))
    engine.load()
    _ended(engine, [Utterance(np.full(16_000, np.nan, np.float32))])
    assert not engine.loaded
