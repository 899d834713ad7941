"""One engine of `engine_ab`, in a process of its own: a JSON line in, a JSON line out, until its input ends.

`asr_server` is whichever the environment leads to, the present one or an older one; this module is always the present
one and uses what both have. Started with the directory of a checkpoint; the environment holds the settings. The first
line out states them, then each line in is the number of rows of `SPAN_S` to transcribe together. torch is imported by
the engine's `load`, never before: the engine sets first how its threads wait.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.schedule.model import RowDelta, RowDone, RowFailed
from tools.bench import engines
from tools.bench.engines import SPAN_S


@contextmanager
def encoder_seconds() -> Iterator[list[float]]:
    """The seconds that the encoder takes for each part of prompts in the block."""
    from asr_server.engine.qwen_asr.runtime import Runtime

    call, seconds = Runtime._encode, list[float]()

    def timed(*args: object) -> None:
        began = time.perf_counter()
        try:
            call(*args)
        finally:
            seconds.append(time.perf_counter() - began)

    with mock.patch.object(Runtime, "_encode", timed):
        yield seconds


def transcribe(engine: QwenEngine, rows: int) -> dict[str, float]:
    """Seconds for so many spans together, and of what they consist.

    `prefill_s`: from the first step to the first token of the last row, without the encoder. `step_ms`: the median of
    the steps in which all rows got a token and none began. `cpu_s`: of the process, all threads together.
    """
    spans = [Utterance(engines.speech(SPAN_S)) for _ in range(rows)]
    waiting, steps, done = list(enumerate(spans)), list[float](), 0
    begun, admitted, first_token_s = set[int](), 0.0, 0.0
    with encoder_seconds() as encoder_s:
        began, cpu_began = time.perf_counter(), time.process_time()
        while done < rows:
            while waiting and engine.free_slots:
                engine.admit(*waiting.pop(0))
            admitted = admitted or time.perf_counter()
            was_full, step_began = len(begun) == rows, time.perf_counter()
            outcomes = list(engine.step())
            now = time.perf_counter()
            given = [outcome.key for outcome in outcomes if isinstance(outcome, RowDelta)]
            begun.update(given)
            if was_full and not any(map(_is_done, outcomes)):
                steps.append(now - step_began)
            first_token_s = first_token_s or (now - admitted if len(begun) == rows else 0.0)
            done += sum(_is_done(outcome) for outcome in outcomes)
    return {
        "total_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu_began,
        "encoder_s": sum(encoder_s),
        "prefill_s": first_token_s - sum(encoder_s),
        "step_ms": 1000 * statistics.median(steps),
    }


def _is_done(outcome: object) -> bool:
    if isinstance(outcome, RowFailed):
        raise outcome.error
    return isinstance(outcome, RowDone)


def _settings(engine: QwenEngine) -> dict[str, object]:
    """Return the active options of the engine's plan, and the number of torch's threads."""
    import torch

    options = {option.name: option.value for option in engine._plan.options if option.active and option.value}
    return {**options, "slots": engine.info.slots, "threads": torch.get_num_threads(), "torch": torch.__version__}


def main(arguments: Sequence[str]) -> None:
    """Answer lines until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing that a library prints may stand between the answers
    engine = engines.load(arguments[0])
    with engines.forced_answers():
        engines.run(engine, [Utterance(engines.speech(5))])
        print(json.dumps(_settings(engine)), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(transcribe(engine, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
