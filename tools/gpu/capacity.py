"""Checks that the memory is as planned, and that the engine survives when there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.aligner import QwenAligner
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.schedule.model import RowDone
from tools.bench import engines
from tools.checkpoints.recogniser import random_aligner
from tools.gpu import server
from tools.gpu.rig import Rig, clips

_MIB = 2**20


def plan(rig: Rig) -> dict[str, object]:
    """Compare the plan for rows with torch's figures at a full batch of long spans, with the aligner loaded. No server
    uses the device then."""
    server.stop(rig)
    engine = rig.engine(rig.model_id, max_batch=64 if rig.device != "cpu" else 4)
    engine.load()
    if rig.device != "cpu":
        torch.cuda.reset_peak_memory_stats(rig.device)
    with engines.forced_answers():
        clip_s = 30 if rig.shape != "demo" else 5
        engines.run(engine, [Utterance(engines.speech(clip_s)) for _ in range(engine.info.slots)])
    info = engine.info
    found: dict[str, object] = {
        "slots": info.slots,
        "kv_budget_mb": info.kv_budget_mb,
        "kv_cache_mb": info.kv_cache_mb,
        **_figures(rig),
    }
    assert info.kv_cache_mb <= info.kv_budget_mb, found
    if rig.device != "cpu":
        aligner_id = "demo" if rig.shape == "demo" else str(random_aligner(device=rig.device))
        aligner = QwenAligner(rig.aligner_plan(aligner_id))
        aligner.locate()
        aligner.load()
        found["with_aligner"] = _figures(rig)
        aligner.unload()
    engine.unload()
    return found


def _figures(rig: Rig) -> dict[str, int]:
    if rig.device == "cpu":
        return {}
    return {
        "allocated_mb": torch.cuda.memory_allocated(rig.device) // _MIB,
        "reserved_mb": torch.cuda.memory_reserved(rig.device) // _MIB,
        "most_allocated_mb": torch.cuda.max_memory_allocated(rig.device) // _MIB,
        "free_mb": torch.cuda.mem_get_info(rig.device)[0] // _MIB,
    }


def drill(rig: Rig) -> dict[str, object]:
    """Memory runs out under a full batch, and is there again later: every row has the ids that it has alone."""
    spoken = clips(8)
    engine = rig.engine("demo", dtype="float32", graphs=False)  # recorded steps have their memory
    engine.load()
    alone = [engines.run(engine, [Utterance(clip)])[0][0].ids for clip in spoken]
    for key, clip in enumerate(spoken):
        engine.admit(key, Utterance(clip))
    while any(work.row is None for work in engine._work.values()):
        list(engine.step())
    done = {}
    with _shortage(rig, engine):
        done |= {outcome.key: outcome.value.ids for outcome in engine.step() if isinstance(outcome, RowDone)}
        rows = engine._row_limit.rows
    while len(done) < len(spoken):
        done |= {outcome.key: outcome.value.ids for outcome in engine.step() if isinstance(outcome, RowDone)}
    equal = sum(done[key] == alone[key] for key in done)
    for _ in range(100):
        engines.run(engine, [Utterance(spoken[0])])
        if engine._row_limit.rows == engine.info.slots:
            break
    found = {"rows": len(spoken), "equal": equal, "rows_while_short": rows, "rows_later": engine._row_limit.rows}
    engine.unload()
    assert found == {"rows": 8, "equal": 8, "rows_while_short": rows, "rows_later": 8}, found
    assert rows < len(spoken), found
    return found


@contextmanager
def _shortage(rig: Rig, engine: QwenEngine) -> Iterator[None]:
    """All of the GPU's memory is taken, also what torch holds and does not use; on a CPU passes fail."""
    runtime = engine.runtime
    assert runtime is not None
    if rig.device != "cpu":
        torch.cuda.empty_cache()
        number = torch.device(rig.device).index or 0
        torch.cuda.set_per_process_memory_fraction(0.0, number)
        taken = list(_taken(rig))
        try:
            yield
        finally:
            taken.clear()
            torch.cuda.set_per_process_memory_fraction(1.0, number)
        return

    def short(*rows: object, ahead: bool) -> None:
        raise torch.OutOfMemoryError

    with mock.patch.object(runtime, "step", short):
        yield


def _taken(rig: Rig) -> Iterator[torch.Tensor]:
    """Take all memory that is left, in ever smaller pieces."""
    size = 2**28
    while size >= 512:
        try:
            yield torch.empty(size, dtype=torch.uint8, device=rig.device)
        except torch.OutOfMemoryError:
            size //= 2
