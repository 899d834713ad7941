"""Milliseconds of what an utterance needs on the processor before its audio is encoded."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from asr_server.engine.qwen_asr import checkpoint, files
from asr_server.engine.qwen_asr.frontend import LogMel
from asr_server.engine.qwen_asr.prompt import PromptBuilder
from tools.bench import engines
from tools.gpu.rig import Rig

_TIMES = 20


def measure(rig: Rig) -> dict[str, object]:
    """Medians for 30 s of audio: the log-mel on the processor and its time of all cores, and the ids of the prompt."""
    found = files.read(checkpoint.locate(rig.model_id))
    mel, audio = LogMel(found.mel), engines.speech(engines.SPAN_S)
    prompts = PromptBuilder(found.tokenizer, found.template(), found.audio_id)
    return {
        "log_mel_ms": _ms(lambda: mel.log10_mel(audio)),
        "prompt_ms": _ms(lambda: prompts.build(context="", language=None)),
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
