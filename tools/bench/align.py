"""How fast are words placed in time, with how much memory, and how long does a decoding row wait for a pass?"""

from __future__ import annotations

import resource
import time

from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import capabilities
from asr_server.engine.core import pass_tokens
from asr_server.engine.protocol import AlignItem, Alignment
from asr_server.engine.qwen_asr.aligner import QwenAligner
from tools.bench import engines
from tools.checkpoints.recogniser import random_aligner

WORDS_PER_S = 2.5


def measure(spans: int = 8, dtype: str = "bfloat16") -> dict[str, object]:
    """Spans of 30 s in passes as the server makes them, on random weights of the released aligner's shape."""
    directory = random_aligner()
    resolved = feature_list.resolve(
        settings.load(model_id="demo", forced_aligner_id=str(directory), dtype=dtype), capabilities.probe()
    )
    aligner = QwenAligner(resolved)
    aligner.locate()
    began = time.perf_counter()
    aligner.load()
    load_s, weights_mb = time.perf_counter() - began, _peak_mb()
    words = " ".join("word" for _ in range(int(engines.SPAN_S * WORDS_PER_S)))
    item = AlignItem(engines.speech(engines.SPAN_S), words, "English")
    at_once = max(1, pass_tokens(resolved.device) // aligner.cost(item))
    passes, cpu_before_s = [], time.process_time()
    for _ in range(0, spans, at_once):
        began = time.perf_counter()
        assert all(isinstance(found, Alignment) for found in list(aligner.align([item] * at_once))[-1])
        passes.append(time.perf_counter() - began)
    return {
        "question": f"Spans of {engines.SPAN_S} s aligned, random weights of the released aligner's shape in {dtype}",
        "audio_seconds_per_second": round(len(passes) * at_once * engines.SPAN_S / sum(passes), 2),
        "spans_in_a_pass": at_once,
        "pass_s_median": round(sorted(passes)[len(passes) // 2], 2),
        "pass_s_longest": round(max(passes), 2),
        "pass_cpu_s": round((time.process_time() - cpu_before_s) / len(passes), 2),
        "load_s": round(load_s, 1),
        "peak_mb_loaded": weights_mb,
        "peak_mb_after": _peak_mb(),
        "target": "no more memory for a long recording than for one pass",
    }


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
