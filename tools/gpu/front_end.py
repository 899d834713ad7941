"""Milliseconds of what an utterance needs before its audio is encoded, by the number of torch's threads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from asr_server.engine.qwen_asr import checkpoint
from asr_server.engine.qwen_asr.frontend import LogMel
from asr_server.engine.qwen_asr.prompt import PromptBuilder
from asr_server.engine.qwen_asr.sdk import Qwen3ASRProcessor
from tools.bench import engines
from tools.gpu.rig import Rig

THREADS = (1, 2, 4, 8, 16)
_TIMES = 20


def measure(rig: Rig) -> dict[str, object]:
    """Medians for 30 s of audio: the log-mel on the processor and its time of all cores, and the ids of the prompt."""
    processor = Qwen3ASRProcessor.from_pretrained(checkpoint.locate(rig.model_id), local_files_only=True)
    mel, prompts, audio = LogMel(processor.feature_extractor), PromptBuilder(processor), engines.speech(engines.SPAN_S)
    before = torch.get_num_threads()
    by_threads: dict[str, object] = {}
    for threads in (number for number in THREADS if number <= max(before, 2)):
        torch.set_num_threads(threads)
        by_threads[str(threads)] = _ms(lambda: mel.log10_mel(audio))
    torch.set_num_threads(before)
    return {
        "log_mel_ms": by_threads,
        "prompt_ms": _ms(lambda: prompts.build(context="", language=None)),
        "threads": before,
    }


def _ms(run: Callable[[], object]) -> dict[str, float]:
    run()
    wall, used = list[float](), list[float]()
    for _ in range(_TIMES):
        began_s, began_used_s = time.perf_counter(), time.process_time()
        run()
        wall.append(1000 * (time.perf_counter() - began_s))
        used.append(1000 * (time.process_time() - began_used_s))
    return {"median": round(statistics.median(wall), 2), "processor": round(statistics.median(used), 2)}
