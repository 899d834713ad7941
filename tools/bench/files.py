"""How much faster is a long recording through our engine than through the model's own package?

The package gets the spans one by one, as its users and most servers around it do, and all of them in one call, which it
makes a batch of. It runs in bfloat16, in which it is fastest; our engine with what it chooses by itself, or with the
settings of the environment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asr_server.engine.protocol import Utterance
from tools.bench import engines
from tools.checkpoints.recogniser import random_checkpoint


def measure(seconds: int = 240, shape: str = "0.6b") -> dict[str, object]:
    """Seconds for a recording in 30 s spans, with the same forced number of tokens. Takes six minutes on two cores."""
    directory = random_checkpoint(shape)
    spans = [engines.speech(engines.SPAN_S) for _ in range(seconds // engines.SPAN_S)]
    engine, package = engines.load(str(directory), max_batch=16), _package(directory)
    with engines.forced_answers():
        began = time.perf_counter()
        engines.run(engine, [Utterance(span, language="English") for span in spans])
        ours_s = time.perf_counter() - began
    one_by_one_s, batched_s = sum(_theirs_s(package, [span]) for span in spans), _theirs_s(package, spans)
    return {
        "question": f"{seconds} s of speech in spans of {engines.SPAN_S} s, random {shape} weights, forced answers",
        "ours": {"dtype": engine.info.dtype, "device": engine.info.device},
        "ours_s": round(ours_s, 2),
        "package_one_by_one_s": round(one_by_one_s, 2),
        "package_in_one_call_s": round(batched_s, 2),
        "times_faster_than_one_by_one": round(one_by_one_s / ours_s, 2),
        "times_faster_than_one_call": round(batched_s / ours_s, 2),
        "our_realtime_factor": round(seconds / ours_s, 2),
        "target": "at least 4 times faster than one by one on a CPU",
    }


def _package(directory: Path) -> Any:
    from tools import sdk  # noqa: F401 - it imports the package without librosa

    from qwen_asr import Qwen3ASRModel  # isort: skip

    return Qwen3ASRModel.from_pretrained(str(directory), dtype="bfloat16", max_new_tokens=512)


def _theirs_s(package: Any, spans: Sequence[np.ndarray]) -> float:
    tokens = engines.forced_tokens(len(spans[0]))
    generate = package.model.generate
    package.model.generate = lambda **inputs: generate(**{**inputs, "min_new_tokens": tokens, "max_new_tokens": tokens})
    try:
        began = time.perf_counter()
        package.transcribe([(span, engines.RATE) for span in spans], language="English")
        return time.perf_counter() - began
    finally:
        package.model.generate = generate
