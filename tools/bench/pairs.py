"""What does a small model beside a large one gain: as the author of drafts, and as that of live partials?

The large one has random weights of a released shape and forced answers, the small one is the demonstration model, which
takes next to nothing: so this is the most that a pair can gain. BENCH_SMALL names another one, such as "0.6b" beside
BENCH_LARGE="1.7b". A draft is the large one's own answer with some tokens changed, since random weights hear nothing
alike.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from tools.bench import engines
from tools.bench.live_step import Speaker
from tools.training.released_layout import SHAPES, random_checkpoint

SPAN_S = 10.0
ROUNDS = 3
# One of so many tokens of a draft is wrong.
WRONG = (1_000, 20, 10, 5)


def measure(rounds: int = ROUNDS) -> dict[str, object]:
    """Medians over rounds in which both ways take turns."""
    names = {"large": os.environ.get("BENCH_LARGE", "0.6b"), "small": os.environ.get("BENCH_SMALL", "demo")}
    large, small = (engines.load(_model(name), max_batch=1) for name in names.values())
    with engines.forced_answers():
        drafts = _drafts(large, small, rounds)
        partials = {name: _partial_ms(engine) for name, engine in (("large", large), ("small", small))}
    return {
        "question": f"Spans of {SPAN_S:g} s, with and without a draft; a partial of {SPAN_S:g} s of speech",
        "settings": {**names, "device": large.info.device, "dtype": large.info.dtype},
        "speculative": drafts,
        "partial_ms": partials,
        "dual_times": round(partials["large"] / partials["small"], 2),
    }


def _model(name: str) -> str:
    return str(random_checkpoint(name)) if name in SHAPES else name


def _drafts(large: QwenEngine, small: QwenEngine, rounds: int) -> dict[str, object]:
    span = Utterance(engines.speech(SPAN_S), language="English")
    (plain,), _ = engines.run(large, [span])
    engines.run(small, [span])
    took: dict[str, list[float]] = {"plain": [], "draft": [], **{f"wrong_1_in_{n}": [] for n in WRONG}}
    passes = {}
    for _ in range(rounds):
        took["plain"].append(_seconds(large, span))
        took["draft"].append(_seconds(small, span))
        for wrong in WRONG:
            ids = tuple(token ^ 1 if n % wrong == wrong - 1 else token for n, token in enumerate(plain.ids))
            drafted = replace(span, draft=ids)
            took[f"wrong_1_in_{wrong}"].append(_seconds(large, drafted))
            (answer,), _ = engines.run(large, [drafted])
            passes[f"wrong_1_in_{wrong}"] = answer.passes
    median = {name: statistics.median(seconds) for name, seconds in took.items()}
    return {
        "plain_s": round(median["plain"], 2),
        "draft_s": round(median["draft"], 2),
        "steps": len(plain.ids) + 1,
        **{
            name: {
                "seconds": round(median[name], 2),
                "steps_saved": round(1 - count / (len(plain.ids) + 1), 2),
                "times_faster_with_the_draft_made": round(median["plain"] / (median[name] + median["draft"]), 2),
            }
            for name, count in passes.items()
        },
    }


def _seconds(engine: QwenEngine, utterance: Utterance) -> float:
    began = time.perf_counter()
    engines.run(engine, [utterance])
    return time.perf_counter() - began


def _partial_ms(engine: QwenEngine) -> float:
    """The median of partials that follow each other, up to the length of a span."""
    speaker, costs = Speaker("pairs"), []
    for number in range(8):
        began = time.perf_counter()
        found, _ = engines.run(engine, [speaker.partial(SPAN_S - 0.45 * (8 - number))])
        costs.append(1000 * (time.perf_counter() - began))
        speaker.last = found[0]
    return round(statistics.median(costs[2:]), 1)
