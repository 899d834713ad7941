"""The `qwen` engine: audio in, hypotheses out, one decode step at a time. Called from one thread."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from loguru import logger

from asr_server.core import heap, settings
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, EngineOutOfMemory, TranscriptionFailed
from asr_server.engine.budget import token_budget
from asr_server.engine.loops import without_loop
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import EngineInfo, Hypothesis, Tokens, Utterance
from asr_server.engine.qwen import checkpoint
from asr_server.scheduling.ports import Outcome, RowDelta, RowDone, RowFailed

if TYPE_CHECKING:
    from asr_server.engine.qwen.decoder import SlotRow
    from asr_server.engine.qwen.runtime import Prepared, Runtime

# What one step may prefill beside the decoding rows, in tokens: a live row waits at most for that.
_PREFILL_TOKENS = 1024
# Prompts in one pass are padded to the longest; beyond this ratio padding costs more than a second pass.
_PREFILL_SPREAD = 1.25


@dataclass(slots=True, eq=False)
class _Work:
    """One admitted utterance. `row` is None while it has no slot; `sent` tokens, `shown` characters were handed out."""

    key: int
    utterance: Utterance
    prepared: Prepared | None = None
    row: SlotRow | None = None
    sent: int = 0
    shown: int = 0


class QwenEngine:
    """Implements `engine.protocol.Engine` over the SDK's modules. torch is imported by `load`, not before.

    `on_progress` is called from inside of passes that may take long, on the thread that makes them; `on_load_progress`
    while a load makes progress; during a download on another thread.
    """

    name = "qwen"

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[], None] = lambda: None,
        on_load_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._on_progress = on_progress
        self._on_load_progress = on_load_progress
        self._runtime: Runtime | None = None
        self._work: dict[int, _Work] = {}
        self._rows_limit = plan.max_batch
        # Rows that decode together while the one that makes steps fail is looked for; None at all other times.
        self._isolation_limit: int | None = None
        self._revision = ""
        self._info = self._bare_info()

    @property
    def info(self) -> EngineInfo:
        """As of the last load, unload or finished row; during a download, as of the last second."""
        return self._info

    @property
    def loaded(self) -> bool:
        """Whether the weights are in memory."""
        return self._runtime is not None

    @property
    def free_slots(self) -> int:
        """How many more utterances the next steps can start; 0 while as much waits as one step may prefill."""
        waiting = [w for w in self._work.values() if w.row is None]
        if sum(self._tokens(work) for work in waiting) >= _PREFILL_TOKENS:
            return 0
        return max(0, self._slot_limit - len(self._work))

    @property
    def _slot_limit(self) -> int:
        return self._rows_limit if self._isolation_limit is None else min(self._isolation_limit, self._rows_limit)

    def load(self) -> None:
        """Find, check and load the checkpoint, plan the memory, and run once on a second of silence.

        The first pass of a process takes several times as long as those after it. Raises `ModelUnavailable`,
        `EngineOutOfMemory`.
        """
        settings.prefer("HF_HUB_DISABLE_TELEMETRY", "1")  # the hub is asked for weights and told nothing else
        try:
            directory = checkpoint.locate(self._plan.model_id, self._on_download, revision=self._plan.model_revision)
        finally:
            self._publish()  # a download is over
        self._revision = checkpoint.revision_of(directory)
        logger.info("checkpoint", model=self._plan.model_id, revision=self._revision)
        # OpenMP threads spin at every barrier by default. A decode step has hundreds of barriers: beside any other busy
        # process on the same cores that made a 7 s clip take 2.6 s instead of 40 ms (2 cores, 2026-11). Read at import.
        settings.prefer("OMP_WAIT_POLICY", "PASSIVE")
        from asr_server.engine.qwen.runtime import Runtime

        self._on_load_progress()  # the libraries are in memory: on a slow disk they take as long as the weights
        heap.share_arenas()
        try:
            self._runtime = Runtime.load(directory, self._plan)
        except Runtime.out_of_memory as error:
            raise EngineOutOfMemory("No memory is left for the model; free some or choose a smaller one.") from error
        self._runtime.report_to(self._on_progress)
        self._rows_limit, self._isolation_limit = self._runtime.capacity.rows, None
        # The libraries bring half a million objects that stay: left among the others, each full collection of garbage
        # would walk them in the middle of a step.
        gc.collect()
        gc.freeze()
        try:
            self._run_once()
        except Exception:
            self.unload()
            raise
        self._publish()

    def _run_once(self) -> None:
        self.admit(0, Utterance(np.zeros(SAMPLE_RATE, np.float32)))
        while self._work:
            for _ in self.step():
                pass

    def unload(self) -> None:
        """Free the weights, the cache, and what the C library holds back."""
        self._runtime = None
        self._work.clear()
        gc.unfreeze()
        gc.collect()
        from asr_server.engine.qwen import memory

        memory.give_back()
        self._publish()

    def admit(self, key: int, item: Utterance) -> None:
        """Take a row in; its front end runs now, its prefill with the next step."""
        assert self._runtime is not None, "admit() before load()"
        self._work[key] = _Work(key, item, self._runtime.prepare(item, _budget(item)))

    def step(self) -> Iterator[Outcome]:
        """Decode for every row with a slot, then prefill what was admitted since, as far as one step allows."""
        runtime = self._runtime
        assert runtime is not None, "step() before load()"
        seated = list(runtime.decoder.rows)
        waiting = [work for work in self._work.values() if work.row is None]
        if seated:
            yield from self._decode(runtime)
        for group in self._groups(runtime, waiting):
            yield from self._prefill(runtime, group)
        yield from self._hand_out_finished(runtime)

    def drop(self, key: int) -> None:
        """Forget a row at once."""
        work = self._work.pop(key, None)
        if work is not None:
            self._take_out(work)

    def _take_out(self, work: _Work) -> None:
        if work.row is not None and self._runtime is not None and work.row in self._runtime.decoder.rows:
            self._runtime.drop(work.row)
        work.row = None

    def _tokens(self, work: _Work) -> int:
        if self._runtime is None or work.prepared is None:
            return 0
        return self._runtime.tokens(work.prepared)

    def _decode(self, runtime: Runtime) -> Iterator[Outcome]:
        try:
            runtime.step()
        except runtime.out_of_memory:
            self._rows_limit = _half(runtime.decoder.rows)
            yield from self._back_off(EngineOutOfMemory("No memory is left for this audio."))
            return
        except Exception as error:  # whatever one row provokes, the others go on
            self._isolation_limit = _half(runtime.decoder.rows)
            yield from self._back_off(_failure(error))
            return
        for row in runtime.decoder.rows:
            yield from self._new_tokens(row)

    def _new_tokens(self, row: SlotRow) -> Iterator[Outcome]:
        """What a row has generated and not yet handed out. A row that started again repeats nothing."""
        work = self._work[row.key]
        if len(row.ids) > work.sent:
            text = self._new_text(work, row) if work.utterance.stream else ""
            yield RowDelta(row.key, Tokens(tuple(row.ids[work.sent :]), tuple(row.logprobs[work.sent :]), text))
            work.sent = len(row.ids)

    def _new_text(self, work: _Work, row: SlotRow) -> str:
        assert self._runtime is not None
        spoken = self._runtime.partial_text(row.ids, work.utterance.language)
        new = spoken[work.shown :]
        work.shown = max(work.shown, len(spoken))
        return new

    def _groups(self, runtime: Runtime, waiting: Sequence[_Work]) -> Iterator[list[_Work]]:
        """What to prefill in this step: in the order of admission, similar lengths together, within the token limit."""
        used, seats, group = 0, self._slot_limit - len(runtime.decoder.rows), list[_Work]()
        for count, work in enumerate(waiting, 1):
            tokens = self._tokens(work)
            full = count > seats or not self._fits(runtime, waiting[:count])
            if full or (used and used + tokens > _PREFILL_TOKENS):
                break
            used += tokens
            lengths = [tokens, *map(self._tokens, group)]
            if group and max(lengths) > _PREFILL_SPREAD * min(lengths):
                yield group
                group = []
            group.append(work)
        if group:
            yield group

    def _fits(self, runtime: Runtime, waiting: Sequence[_Work]) -> bool:
        longest = max(runtime.row_tokens(w.prepared, _budget(w.utterance)) for w in waiting if w.prepared is not None)
        return runtime.decoder.fits(len(waiting), longest)

    def _prefill(self, runtime: Runtime, group: list[_Work]) -> Iterator[Outcome]:
        rows = [(self._row(runtime, work), work.prepared) for work in group if work.prepared is not None]
        try:
            runtime.prefill(rows)
        except runtime.out_of_memory:
            yield from self._isolate(runtime, group, EngineOutOfMemory("No memory is left for this audio."))
            return
        except Exception as error:  # whatever this audio provokes, the other rows go on
            yield from self._isolate(runtime, group, _failure(error))
            return
        for work, (row, _) in zip(group, rows, strict=True):
            work.row = row
            yield from self._new_tokens(row)

    def _row(self, runtime: Runtime, work: _Work) -> SlotRow:
        from asr_server.engine.qwen.decoder import SlotRow
        from asr_server.engine.speculative import Draft

        utterance = work.utterance
        return SlotRow(
            key=work.key,
            budget=_budget(utterance),
            temperature=utterance.temperature,
            generator=runtime.generator(utterance),
            draft=Draft(utterance.draft) if utterance.draft else None,
            forced=utterance.prefix,
            no_speech_id=None if utterance.language else runtime.no_speech_id,
        )

    def _isolate(self, runtime: Runtime, group: list[_Work], failure: AsrError) -> Iterator[Outcome]:
        """A prefill failed: try its halves, down to the row that is at fault."""
        if len(group) == 1:
            del self._work[group[0].key]
            yield RowFailed(group[0].key, failure)
            return
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            yield from self._prefill(runtime, half)

    def _back_off(self, failure: AsrError) -> Iterator[Outcome]:
        """A step failed: take the younger half of the rows out, to start again later with fewer beside them.

        A row that was alone is at fault and fails.
        """
        assert self._runtime is not None
        rows = sorted(self._runtime.decoder.rows, key=lambda row: row.key)
        if len(rows) == 1:
            self.drop(rows[0].key)
            self._isolation_limit = None
            yield RowFailed(rows[0].key, failure)
        for row in rows[_half(rows) :]:
            self._take_out(self._work[row.key])

    def _hand_out_finished(self, runtime: Runtime) -> Iterator[Outcome]:
        finished = [row for row in runtime.decoder.rows if row.finished]
        for row in finished:
            work = self._work[row.key]
            self.drop(row.key)
            if row.overflowed:
                yield RowFailed(
                    row.key, TranscriptionFailed("The model's numbers left the range of DTYPE on this audio.")
                )
            else:
                yield RowDone(row.key, self._hypothesis(runtime, work, row))
        if finished:
            self._isolation_limit = None
            self._publish()

    def _hypothesis(self, runtime: Runtime, work: _Work, row: SlotRow) -> Hypothesis:
        assert work.prepared is not None
        keep = without_loop(row.ids, row.looping) if row.looping else len(row.ids)
        ids = tuple(row.ids[:keep])
        answer = runtime.read(ids, work.utterance.language)
        prompt = work.prepared.prompt
        return Hypothesis(
            text=answer.text,
            language=answer.language,
            ids=ids,
            logprobs=tuple(row.logprobs[:keep]),
            finish=row.finish,
            audio_tokens=runtime.audio_tokens(work.prepared),
            prompt_tokens=len(prompt.before) + len(prompt.after),
            passes=row.passes,
            no_speech_prob=math.exp(row.no_speech_logprob) if row.no_speech_logprob is not None else None,
            offsets=answer.offsets,
            pieces=answer.pieces,
        )

    def _bare_info(self) -> EngineInfo:
        return EngineInfo(
            self.name, self._plan.model_id, self._plan.device, self._plan.dtype, model_revision=self._revision
        )

    def _on_download(self, size_bytes: int) -> None:
        self._info = replace(self._bare_info(), downloaded_mb=size_bytes // 2**20)
        self._on_load_progress()

    def _publish(self) -> None:
        figures = self._runtime.figures() if self._runtime is not None else {}
        self._info = replace(self._bare_info(), **figures)


def _budget(utterance: Utterance) -> int:
    return token_budget(len(utterance.audio)) + len(utterance.prefix)


def _half(rows: Sequence[SlotRow]) -> int:
    return max(1, len(rows) // 2)


def _failure(error: Exception) -> AsrError:
    if isinstance(error, AsrError):
        return error
    failure = TranscriptionFailed("The engine failed on this audio.")
    failure.__cause__ = error
    return failure
