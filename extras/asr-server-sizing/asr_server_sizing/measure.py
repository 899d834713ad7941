"""Measures the costs of an engine's steps on this machine, in about a minute: decode steps, prompts, partials."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.protocol import Engine, Finish, Hypothesis, Utterance
from asr_server.live.machine.events import Samples
from asr_server.schedule.ports import RowDone, RowFailed
from asr_server_sizing import fit
from asr_server_sizing.fit import Point
from asr_server_sizing.profile import AUDIO_TOKENS_PER_S, PARTIAL_PASSES, PROMPT_TOKENS, TOKENS_PER_S, Profile

_ROUNDS = 3
# Rows and seconds of audio whose prompts are timed; those that do not fit the batch are left out.
_PROMPTS = ((1, 1.0), (1, 4.0), (1, 10.0), (1, 30.0), (4, 4.0), (8, 4.0), (4, 30.0))
# New speech of a partial, and the newest audio whose words are not committed.
_PARTIAL_S, _OPEN_S = 0.45, 4.0
_WINDOW_S = 8.0
_SESSION = "size"


@dataclass(slots=True)
class _Times:
    """The times of a run."""

    decode_s: list[float] = field(default_factory=list)  # of the steps in which all rows got a token
    prompts_s: float = 0.0  # until all rows had begun
    passes: int = 0  # over prompts, until all rows had begun
    beside: list[int] = field(default_factory=list)  # the rows that decoded during each of these passes
    done: dict[int, Hypothesis] = field(default_factory=dict)  # the results of the rows


class Measurement:
    """Measures a loaded engine. `clip`: some seconds of speech, float32 (n,), mono, 16 kHz. `clock`: monotonic."""

    def __init__(self, engine: Engine, clip: Samples, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine, self._clip, self._clock = engine, clip, clock

    def profile(self) -> Profile:
        """Return the profile. Raises `AsrError` if a row fails, `ValueError` if the engine has no steps to measure."""
        info = self._engine.info
        decode = self._decode_points()
        step_costs = fit.line(decode)
        passes, partials = self._partials(step_costs)
        costs = fit.costs(decode, [*self._prompts(step_costs), *partials])
        tokens_per_s, assumptions = self._tokens_per_s(), list[str]()
        if not tokens_per_s or not passes:
            tokens_per_s, passes = TOKENS_PER_S, list(PARTIAL_PASSES)
            assumptions.append(
                f"The model does not end its answers, so {tokens_per_s} tokens per second of speech are assumed, and "
                "as many passes of partials as those of the demonstration model."
            )
        return Profile(
            model=info.model_id,
            hardware=info.gpu_name or "processor of this machine",
            source="asr-server size --measure",
            measured_on=date.today().isoformat(),
            slots=info.slots,
            measured_rows=max(round(point.each) for point in decode),
            steps=costs,
            tokens_per_s=tokens_per_s,
            partial_passes=tuple(passes),
            cores=0 if info.device.startswith("cuda") else len(os.sched_getaffinity(0)),
            assumptions=tuple(assumptions),
        )

    def _decode_points(self) -> list[Point]:
        slots, points = self._engine.info.slots, []
        for rows in sorted({slots, *(2**n for n in range(9) if 2**n < slots)}):
            took_s = [took for _ in range(_ROUNDS) for took in self._run([Utterance(self._clip)] * rows).decode_s]
            if took_s:
                points.append(Point(1, rows, statistics.median(took_s)))
        return points

    def _prompts(self, step_costs: tuple[float, float]) -> list[Point]:
        """Return the times of the prompts of rows that come together."""
        points = []
        for rows, seconds in _PROMPTS:
            if rows <= self._engine.info.slots:
                item = Utterance(np.resize(self._clip, int(seconds * SAMPLE_RATE)))
                runs = [self._run([item] * rows, prompts_only=True) for _ in range(_ROUNDS)]
                tokens = rows * (seconds * AUDIO_TOKENS_PER_S + PROMPT_TOKENS)
                took_s = statistics.median(run.prompts_s - _decoding_s(run.beside, step_costs) for run in runs)
                points.append(Point(runs[-1].passes, tokens, took_s))
        return points

    def _partials(self, step_costs: tuple[float, float]) -> tuple[list[int], list[Point]]:
        """Return the passes of the partials of an utterance that grows, and their times without decode steps."""
        passes, points = list[int](), list[Point]()
        last: Hypothesis | None = None
        for count in range(1, int(len(self._clip) / SAMPLE_RATE / _PARTIAL_S) + 1):
            seconds = count * _PARTIAL_S
            ids = last.ids if last is not None else ()
            committed = ids[: int(len(ids) * max(0.0, 1 - _OPEN_S / seconds))]
            audio = self._clip[: int(seconds * SAMPLE_RATE)]
            began_s = self._clock()
            found = self._run([Utterance(audio, session=_SESSION, prefix=committed, draft=ids)]).done[0]
            took_s = self._clock() - began_s
            if last is not None and found.finish is Finish.END:
                kept_s = (seconds - _PARTIAL_S) // _WINDOW_S * _WINDOW_S
                tokens = (seconds - kept_s) * AUDIO_TOKENS_PER_S + len(ids) + PROMPT_TOKENS
                passes.append(max(1, found.passes))
                points.append(Point(1, tokens, took_s - _decoding_s([1] * (passes[-1] - 1), step_costs)))
            last = found
        self._run([Utterance(self._clip, session=_SESSION, last=True)])  # nothing is kept of it
        return passes, points

    def _tokens_per_s(self) -> float | None:
        """Return the tokens of an answer by seconds of speech, or None if the model does not end it."""
        found = self._run([Utterance(self._clip)]).done[0]
        return len(found.ids) / (len(self._clip) / SAMPLE_RATE) if found.finish is Finish.END else None

    def _run(self, items: Sequence[Utterance], *, prompts_only: bool = False) -> _Times:
        """Run rows to their ends, or until all have begun."""
        found, waiting, begun = _Times(), list(enumerate(items)), set[int]()
        while len(found.done) < len(items) and not (prompts_only and len(begun) == len(items)):
            before, done = len(begun), len(found.done)
            began_s = self._clock()
            while waiting and self._engine.free_slots > 0:
                self._engine.admit(*waiting.pop(0))
            begun |= self._step(found)
            took_s = self._clock() - began_s
            if before < len(items):
                found.prompts_s += took_s
                found.passes += 1
                found.beside.append(before - done)
            elif not done:
                found.decode_s.append(took_s)
        for key in range(len(items)):
            self._engine.drop(key)
        return found

    def _step(self, found: _Times) -> set[int]:
        """Make a step and return the rows that had an outcome."""
        keys = set()
        for outcome in self._engine.step():
            if isinstance(outcome, RowFailed):
                raise outcome.error
            keys.add(outcome.key)
            if isinstance(outcome, RowDone):
                found.done[outcome.key] = outcome.value
        return keys


def _decoding_s(rows: Sequence[int], step_costs: tuple[float, float]) -> float:
    """Return the seconds of decode steps with these numbers of rows; 0 rows are no step."""
    return sum(step_costs[0] + count * step_costs[1] for count in rows if count)
