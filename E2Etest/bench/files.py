"""How much faster is a long recording through our engine than through the model's own package, span by span?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from asr_server.engine.protocol import Utterance
from E2Etest.bench import engines
from E2Etest.bench.checkpoints import random_checkpoint

ROUNDS = 1


def measure(seconds: int = 240, shape: str = "0.6b") -> dict[str, object]:
    """Seconds for a recording in 30 s spans; both sides in bf16 with the same forced number of tokens, in turn."""
    directory = random_checkpoint(shape)
    spans = [engines.speech(engines.SPAN_S) for _ in range(seconds // engines.SPAN_S)]
    engine = engines.load(str(directory), max_batch=16, dtype="bfloat16")
    package = _package(directory)
    ours, theirs = [], []
    with engines.forced_answers():
        for _ in range(ROUNDS):
            began = time.perf_counter()
            engines.run(engine, [Utterance(span) for span in spans])
            ours.append(time.perf_counter() - began)
            theirs.append(sum(_theirs_s(package, span) for span in spans))
    return {
        "question": f"{seconds} s of speech in spans of {engines.SPAN_S} s, random {shape} weights, forced answers",
        "ours_s": round(min(ours), 2),
        "package_s": round(min(theirs), 2),
        "times_faster": round(min(theirs) / min(ours), 2),
        "our_realtime_factor": round(seconds / min(ours), 2),
        "target": "at least 3 times on a CPU",
    }


def _package(directory: Path) -> Any:
    from qwen_asr import Qwen3ASRModel

    return Qwen3ASRModel.from_pretrained(str(directory), dtype="bfloat16", max_new_tokens=512)


def _theirs_s(package: Any, span: np.ndarray) -> float:
    tokens = engines.forced_tokens(len(span))
    generate = package.model.generate
    package.model.generate = lambda **inputs: generate(**{**inputs, "min_new_tokens": tokens, "max_new_tokens": tokens})
    try:
        began = time.perf_counter()
        package.transcribe((span, engines.RATE), language="English")
        return time.perf_counter() - began
    finally:
        package.model.generate = generate
