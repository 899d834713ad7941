"""Measures what an engine's steps cost on this machine, in about a minute: decode steps, prompts, partials."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.protocol import Engine, Finish, Hypothesis, Utterance
from asr_server.scheduling.ports import RowDone, RowFailed
from asr_server.sizing import fit
from asr_server.sizing.fit import Point
from asr_server.sizing.profile import AUDIO_TOKENS_PER_S, PARTIAL_PASSES, PROMPT_TOKENS, TOKENS_PER_S, Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROUNDS = 3
# Rows and seconds of audio whose prompts are timed; what does not fit the batch is left out.
_PROMPTS = ((1, 1.0), (1, 4.0), (1, 10.0), (1, 30.0), (4, 4.0), (8, 4.0), (4, 30.0))
# New speech of a partial, and the newest audio whose words are not committed.
_PARTIAL_S, _OPEN_S = 0.45, 4.0
_WINDOW_S = 8.0


@dataclass(slots=True)
class _Steps:
    """What a run took. `decode`: a point for each step in which all rows got a token. `prompts_s`: until all rows had
    begun, without the tokens of those that had; `prompts`: steps of it. `done`: what the rows said."""

    decode: list[Point] = field(default_factory=list)
    prompts_s: float = 0.0
    prompts: int = 0
    done: dict[int, Hypothesis] = field(default_factory=dict)


def measure(engine: Engine, clips: Sequence[NDArray[np.float32]], on_part: Callable[[str], None]) -> Profile:
    """The profile of a loaded engine. `clips`: speech, 16 kHz mono, each of some seconds. `on_part`: called with what
    is measured next. Raises `AsrError` where a row fails, `ValueError` where the engine has no steps to measure."""
    on_part("decode steps")
    decode = _decode_points(engine, clips[0])
    step_costs = fit.line(decode)
    on_part("prompts")
    prompts = _prompt_points(engine, clips[0], step_costs)
    on_part("partials")
    passes, partials = _partial_points(engine, clips, step_costs)
    prompts += partials
    costs = fit.costs(decode, prompts)
    assumptions, tokens_per_s = [], _tokens_per_s(engine, clips)
    if tokens_per_s is None:
        tokens_per_s, passes = TOKENS_PER_S, list(PARTIAL_PASSES)
        assumptions.append(
            f"The model does not end its answers, so {TOKENS_PER_S} tokens per second of speech and {passes[0]} passes "
            "of a partial are assumed."
        )
    info = engine.info
    return Profile(
        model=info.model_id,
        hardware=info.gpu_name or "this machine's processor",
        source="asr-server size --measure",
        measured_on=date.today().isoformat(),
        slots=info.slots,
        measured_rows=max(round(point.each / point.fixed) for point in decode),
        steps=costs,
        tokens_per_s=tokens_per_s,
        partial_passes=tuple(passes) or PARTIAL_PASSES,
        cores=0 if info.device.startswith("cuda") else len(os.sched_getaffinity(0)),
        assumptions=tuple(assumptions),
    )


def _decode_points(engine: Engine, clip: NDArray[np.float32]) -> list[Point]:
    sizes = [2**n for n in range(9) if 2**n < engine.info.slots] + [engine.info.slots]
    points = []
    for rows in sizes:
        took_s = [point.seconds for _ in range(_ROUNDS) for point in _run(engine, [Utterance(clip)] * rows).decode]
        if took_s:
            points.append(Point(1, rows, statistics.median(took_s)))
    return points


def _prompt_points(engine: Engine, clip: NDArray[np.float32], step_costs: tuple[float, float]) -> list[Point]:
    import numpy as np

    points = []
    for rows, seconds in _PROMPTS:
        if rows <= engine.info.slots:
            items = [Utterance(np.resize(clip, int(seconds * SAMPLE_RATE)))] * rows
            runs = [_run(engine, items, step_costs, prompts_only=True) for _ in range(_ROUNDS)]
            tokens = rows * (seconds * AUDIO_TOKENS_PER_S + PROMPT_TOKENS)
            points.append(Point(runs[-1].prompts, tokens, statistics.median(run.prompts_s for run in runs)))
    return points


def _partial_points(
    engine: Engine, clips: Sequence[NDArray[np.float32]], step_costs: tuple[float, float]
) -> tuple[list[int], list[Point]]:
    """Passes of the partials of utterances that grow, and what was left of their times without decode steps."""
    passes, points = [], []
    for number, clip in enumerate(clips):
        last: Hypothesis | None = None
        for count in range(1, int(len(clip) / SAMPLE_RATE / _PARTIAL_S) + 1):
            seconds = count * _PARTIAL_S
            ids = last.ids if last is not None else ()
            committed = ids[: int(len(ids) * max(0.0, 1 - _OPEN_S / seconds))]
            audio = clip[: int(seconds * SAMPLE_RATE)]
            item = Utterance(audio, session=f"size-{number}", prefix=committed, draft=ids)
            began_s = time.perf_counter()
            found = _run(engine, [item]).done[0]
            took_s = time.perf_counter() - began_s
            if last is not None and found.finish is Finish.END:
                kept_s = (seconds - _PARTIAL_S) // _WINDOW_S * _WINDOW_S
                tokens = (seconds - kept_s) * AUDIO_TOKENS_PER_S + len(ids) + PROMPT_TOKENS
                passes.append(max(1, found.passes))
                points.append(Point(1, tokens, max(1e-6, took_s - (passes[-1] - 1) * sum(step_costs))))
            last = found
        _run(engine, [Utterance(clip, session=f"size-{number}", last=True)])
    return passes, points


def _tokens_per_s(engine: Engine, clips: Sequence[NDArray[np.float32]]) -> float | None:
    """Of answers to the clips; None where the model does not end them."""
    found = [_run(engine, [Utterance(clip)]).done[0] for clip in clips]
    if any(hypothesis.finish is not Finish.END for hypothesis in found):
        return None
    return max(0.1, sum(len(h.ids) for h in found) / (sum(map(len, clips)) / SAMPLE_RATE))


def _run(
    engine: Engine,
    items: Sequence[Utterance],
    step_costs: tuple[float, float] = (0.0, 0.0),
    *,
    prompts_only: bool = False,
) -> _Steps:
    """Run rows to their ends, or until all have begun."""
    found, waiting, begun = _Steps(), list(enumerate(items)), set[int]()
    while len(found.done) < len(items) and not (prompts_only and len(begun) == len(items)):
        before = len(begun) - len(found.done)
        began_s = time.perf_counter()
        while waiting and engine.free_slots > 0:
            engine.admit(*waiting.pop(0))
        given = set()
        for outcome in engine.step():
            if isinstance(outcome, RowFailed):
                _drop_all(engine, len(items))
                raise outcome.error
            given.add(outcome.key)
            if isinstance(outcome, RowDone):
                found.done[outcome.key] = outcome.value
        took_s = time.perf_counter() - began_s
        if before == len(items) and not found.done:
            found.decode.append(Point(1, before, took_s))
        elif len(begun) < len(items):
            found.prompts += 1
            found.prompts_s += took_s - (step_costs[0] + before * step_costs[1] if before else 0.0)
        begun |= given
    _drop_all(engine, len(items))
    return found


def _drop_all(engine: Engine, rows: int) -> None:
    for key in range(rows):
        engine.drop(key)
