"""An aligner in compiled graphs, for CPUs: prompts run in parts, and other work can run between the parts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from asr_server.engine.feature import Plan
from asr_server.engine.memory import PrefillPolicy
from asr_server.engine.openvino.compiled_text import PAGE, CompiledText, Pages, PageSpan, page_count
from asr_server.engine.qwen_asr import compiled_model
from asr_server.engine.qwen_asr.aligner_model import PART_S, AlignerRow, Scores
from asr_server.engine.qwen_asr.compiled_encoder import CompiledEncoder
from asr_server.engine.qwen_asr.files import CheckpointFiles


@dataclass(slots=True, eq=False)
class _Row:
    """A row whose prompt is being run."""

    embeds: NDArray[np.float32]  # (n, d)
    stamps: list[int]  # places whose scores are needed
    pages: list[int]
    done: int = 0  # tokens that were run
    found: list[Scores] = field(default_factory=list)  # scores so far


class CompiledAligner:
    """Implements `AlignerModel`."""

    def __init__(self, text: CompiledText, encoder: CompiledEncoder, slots: int) -> None:
        self._text, self.encoder, self.slots = text, encoder, slots
        self._policy = PrefillPolicy()

    def report_to(self, on_progress: Callable[[], None]) -> None:
        self.encoder.on_layer = self._text.on_layer = on_progress

    def scores(self, rows: Sequence[AlignerRow], stamp: int) -> Iterator[list[Scores] | None]:
        """See `AlignerModel`. A part is the convolutions or the layers of one window of audio, or as many tokens as
        take about 0.2 s."""
        embeds = []
        for row in rows:
            audio = list[NDArray[np.float32]]()
            for window in self.encoder.windows(row.mel):
                states = self.encoder.states([window])
                yield None
                audio += self.encoder.embeddings(states)
                yield None
            embeds.append(np.concatenate([self._text.embed(row.before), *audio, self._text.embed(row.after)]))
        pages = Pages(self._text.page_shapes(), sum(PAGE * page_count(len(given)) for given in embeds))
        waiting = deque(
            _Row(given, _stamps(row, len(given), stamp), pages.take(page_count(len(given))))
            for row, given in zip(rows, embeds, strict=True)
        )
        made = list(waiting)
        while True:
            self._text.attach(pages)  # another engine that shares the aligner may have run a pass meanwhile
            self._run_part(waiting)
            if not waiting:
                break
            yield None
        yield [np.concatenate(row.found) for row in made]

    def _run_part(self, waiting: deque[_Row]) -> None:
        """Run tokens of the first rows, and remove rows that have reached their end."""
        left, parts = self._policy.tokens(PART_S), list[tuple[_Row, int]]()
        for row in waiting:
            count = min(left, len(row.embeds) - row.done)
            if count < 1:
                break
            parts.append((row, count))
            left -= count
        began_s, begin, places, ends = time.perf_counter(), 0, list[int](), [0]
        for row, count in parts:
            places += (begin + at - row.done for at in row.stamps if row.done <= at < row.done + count)
            ends.append(len(places))
            begin += count
        embeds = np.concatenate([row.embeds[row.done : row.done + count] for row, count in parts])
        spans = [PageSpan(row.pages, row.done, count) for row, count in parts]
        # Request the logits of at least one token: a graph cannot return none.
        logits = self._text(embeds, spans, places or [0]).logits
        for (row, count), first, end in zip(parts, ends, ends[1:], strict=False):
            row.found.append(logits[first:end].copy())
            row.done += count
        while waiting and waiting[0].done == len(waiting[0].embeds):
            waiting.popleft()
        self._policy.note_prefill(len(embeds), time.perf_counter() - began_s)


def _stamps(row: AlignerRow, tokens: int, stamp: int) -> list[int]:
    begin = tokens - len(row.after)
    return [begin + at for at, token in enumerate(row.after) if token == stamp]


def load(found: CheckpointFiles, plan: Plan, on_progress: Callable[[float], None]) -> CompiledAligner:
    """Compile a checked aligner. Raises what loading raises."""
    formats = compiled_model.formats_of(plan)
    if formats.bits:
        formats = replace(formats, bits=8)  # with fewer bits, the times of words would shift
    text, encoder, _ = compiled_model.graphs(found, formats, plan.state_dir, on_progress)
    assert encoder is not None
    return CompiledAligner(text, encoder, text.vocabulary)
