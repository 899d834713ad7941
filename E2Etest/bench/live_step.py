"""What does one live partial cost, early and late in a session, and against feeding all audio again?

A session is utterances of at most 30 s; a partial comes every 450 ms and takes the last hypothesis as its draft. The
cost rises within each encoder window of 8 s and falls back with the next, so places are compared 2 s into a window.
"""

from __future__ import annotations

import statistics
import time

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen.engine import QwenEngine
from asr_training.released_layout import random_checkpoint
from E2Etest.bench import engines

STEP_S = 0.45
# Seconds into a session, and into its open utterance: 2 s behind the last closed window.
PLACES = {10: 10.0, 60: 26.0, 600: 26.0}


def measure(shape: str = "0.6b") -> dict[str, object]:
    """Milliseconds of one partial; random weights of the released shape in bf16."""
    engine = engines.load(str(random_checkpoint(shape)), max_batch=1, dtype="bfloat16")
    with engines.forced_answers():
        _partials(engine, "warm-up", PLACES[10], count=1)
        by_place = {f"{place_s}_s": round(_at(engine, place_s), 1) for place_s in PLACES}
        reused, again = _long(engine, 60)
    return {
        "question": "Cost of one partial in ms, by the place in the session; utterances end at 30 s",
        "partial_ms": by_place,
        "largest_over_smallest": round(max(by_place.values()) / min(by_place.values()), 2),
        "at_60_s_without_a_pause_ms": {"with_reuse_and_draft": round(reused, 1), "feeding_all_again": round(again, 1)},
        "times_cheaper": round(again / reused, 2),
        "target": "within 1.2 times of each other; at least 5 times cheaper",
    }


def _at(engine: QwenEngine, place_s: int) -> float:
    """The median cost of the partials around `place_s` seconds into a session."""
    return statistics.median(_partials(engine, f"at-{place_s}", PLACES[place_s], count=3))


def _partials(engine: QwenEngine, session: str, upto_s: float, count: int) -> list[float]:
    """Costs in ms of the last `count` partials of an utterance that is `upto_s` long, those before them run as well."""
    costs, draft = [], ()
    for i in range(count + 2, -1, -1):
        audio = engines.speech(upto_s - i * STEP_S)
        began = time.perf_counter()
        ((hypothesis,), _) = engines.run(engine, [Utterance(audio, session=session, draft=draft)])
        costs.append(1000 * (time.perf_counter() - began))
        draft = hypothesis.ids
    return costs[-count:]


def _long(engine: QwenEngine, seconds: int) -> tuple[float, float]:
    """Costs in ms at that many seconds without a pause: with what we keep, and with all audio and no draft."""
    reused = statistics.median(_partials(engine, "long", seconds, count=3))
    audio = engines.speech(seconds)
    began = time.perf_counter()
    engines.run(engine, [Utterance(audio)])
    return reused, 1000 * (time.perf_counter() - began)
