"""The `qwen` engine: audio in, hypotheses out, one decode step at a time. Called from one thread."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from loguru import logger

from asr_server.core import idle, settings
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, EngineFailed, EngineOutOfMemory, ModelUnavailable, TranscriptionFailed
from asr_server.engine.budget import token_budget
from asr_server.engine.loops import without_loop
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import EngineInfo, Hypothesis, Tokens, Utterance, in_tokens
from asr_server.engine.qwen_asr import checkpoint
from asr_server.engine.qwen_asr.capacity import RowLimit
from asr_server.schedule.ports import Outcome, RowDelta, RowDone, RowFailed

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.answer import AnswerStream
    from asr_server.engine.qwen_asr.decoder import SlotRow
    from asr_server.engine.qwen_asr.runtime import Prepared, Runtime

# Steps of each batch at the end of a load: its prompts, and two steps.
_WARM_UP_STEPS = 3
# The log says so often how far a download is.
_LOG_DOWNLOAD_S = 5.0


@dataclass(slots=True, eq=False)
class _Work:
    """One admitted utterance."""

    key: int
    utterance: Utterance
    prepared: Prepared
    urgent: bool = False  # it goes before work that is not
    row: SlotRow | None = None  # None while it has no slot
    stream: AnswerStream | None = None  # reads the tokens that were handed out; None where no text is asked for
    sent: int = 0  # tokens that were handed out

    @property
    def waits(self) -> bool:
        """True if its prompt is not run to its end."""
        return self.row is None or self.row.input is not None


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
        self._download_logged_s = -math.inf
        self._work: dict[int, _Work] = {}
        self._row_limit = RowLimit(plan.max_batch)
        # Rows that decode together while the one that makes steps fail is looked for; None at all other times.
        self._isolation_limit: int | None = None
        # The same for rows whose prompts are run together.
        self._prefill_rows: int | None = None
        self._begin_s: float | None = None  # of the last step
        self._directory: Path | None = None
        self._revision = ""
        self._on_disk = checkpoint.on_disk(plan.model_id, revision=plan.model_revision)
        self._info = self._bare_info()

    @property
    def info(self) -> EngineInfo:
        """Return the facts as of the last load, unload or finished row; during a download, as of the last second."""
        return self._info

    @property
    def loaded(self) -> bool:
        """True if the weights are in memory."""
        return self._runtime is not None

    @property
    def fits(self) -> bool:
        """True if the weights seem to fit into the free memory, and where their size is not known."""
        from asr_server.engine.qwen_asr import footprint

        return footprint.fits(self._plan)

    @property
    def free_slots(self) -> int:
        """Return how many more utterances the next steps can start; 0 while as much waits as one step may prefill."""
        return self._slots_beside([work for work in self._work.values() if work.waits])

    @property
    def urgent_slots(self) -> int:
        """Return how many more urgent ones the next steps can start: those are prefilled first."""
        return self._slots_beside([work for work in self._work.values() if work.waits and work.urgent])

    def _slots_beside(self, waiting: Sequence[_Work]) -> int:
        if waiting and self._runtime is not None:
            left = (work.row.input.left if work.row and work.row.input else None for work in waiting)
            tokens = sum(
                self._runtime.tokens(work.prepared) if own is None else own
                for own, work in zip(left, waiting, strict=True)
            )
            if tokens >= self._runtime.prefill_policy.tokens(self._begin_s):
                return 0
        return max(0, self._slot_limit - len(self._work))

    @property
    def _slot_limit(self) -> int:
        return min(self._isolation_limit or self._row_limit.rows, self._row_limit.rows)

    def load(self) -> None:
        """Find, check and load the checkpoint, plan the memory, and run ordinary shapes once on silence.

        A checkpoint that was found once is not looked for again. Raises `ModelUnavailable`, `EngineOutOfMemory`,
        `EngineFailed`.
        """
        settings.prefer("HF_HUB_DISABLE_TELEMETRY", "1")  # the hub is asked for weights and told nothing else
        directory = self._locate()
        self._revision = checkpoint.revision_of(directory)
        logger.info("checkpoint", model=self._plan.model_id, revision=self._revision)
        # OpenMP threads spin at every barrier by default. A decode step has hundreds of barriers: with another busy
        # process on the same cores that made a 7 s clip take 2.6 s instead of 40 ms (2 cores, 2026-11). Read at import.
        settings.prefer("OMP_WAIT_POLICY", "PASSIVE")
        from asr_server.engine.qwen_asr.runtime import Runtime

        self._on_load_progress()  # the libraries are in memory: on a slow disk they take as long as the weights
        idle.share_heaps()
        self._runtime = Runtime.load(directory, self._plan)
        self._runtime.report_to(self._on_progress)
        self._row_limit, self._isolation_limit = RowLimit(self._runtime.capacity.rows), None
        # The libraries bring half a million objects that stay: left among the others, each full collection of garbage
        # would walk them in the middle of a step.
        gc.collect()
        gc.freeze()
        try:
            self._warm_up(self._runtime)
        except EngineFailed:
            raise  # unloading would fail too
        except Exception:
            self.unload()
            raise
        self._publish()

    def _locate(self) -> Path:
        """Return the directory of the checkpoint. After an idle time it is the same one, whatever the hub has by
        then."""
        model_id, revision = self._plan.model_id, self._plan.model_revision
        try:
            if self._directory is None or checkpoint.problem(self._directory, model_id):
                self._directory = checkpoint.locate(model_id, self._on_download, revision=revision)
            self._on_disk = True
        finally:
            self._publish()  # a download is over
        return self._directory

    def _warm_up(self, runtime: Runtime) -> None:
        """Run what first passes set up, which would otherwise be waited for, and count against ENGINE_HANG_S. Raises
        the error that a row which is alone fails with."""
        for seconds, rows in runtime.warm_up_batches:
            for key in range(rows):
                if self.free_slots > 0:
                    self.admit(key, Utterance(np.zeros(int(seconds * SAMPLE_RATE), np.float32)))
            for _ in range(_WARM_UP_STEPS):
                self._on_load_progress()
                for outcome in self.step():
                    if isinstance(outcome, RowFailed):
                        raise outcome.error
            for key in list(self._work):
                self.drop(key)
        if self._plan.cuda_graphs:
            self._record_steps(runtime)

    def _record_steps(self, runtime: Runtime) -> None:
        """Raises `ModelUnavailable` where the GPU refuses, `EngineOutOfMemory`, `EngineFailed`."""
        failure = runtime.attempt(lambda: runtime.record_steps(self._on_load_progress))
        if isinstance(failure, TranscriptionFailed):
            raise ModelUnavailable(
                "Decode steps cannot be recorded on this GPU; set USE_CUDA_GRAPHS=false."
            ) from failure
        if failure is not None:
            raise failure

    def unload(self) -> None:
        """Free the weights, the cache, and what the C library holds back."""
        self._runtime = None
        self._work.clear()
        gc.unfreeze()
        gc.collect()
        from asr_server.engine.torch import memory

        memory.give_back()
        self._publish()

    def admit(self, key: int, item: Utterance, urgent: bool = False) -> None:
        """Take a row in; its front end runs now, its prefill with one of the next steps."""
        assert self._runtime is not None, "admit() before load()"
        item = in_tokens(item, self._runtime.encode)
        stream = self._runtime.answer_stream(item.language) if item.stream else None
        self._work[key] = _Work(key, item, self._runtime.prepare(item, _budget(item)), urgent, stream=stream)

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Decode for every row whose prompt was run and hand out those that finished; then run prompts, urgent rows
        first, for about `begin_s` if that is given."""
        runtime = self._runtime
        assert runtime is not None, "step() before load()"
        self._begin_s = begin_s
        if runtime.decoder.decoding:
            yield from self._decode(runtime)
            yield from self._hand_out_finished(runtime)
        yield from self._seat(runtime)
        if len(runtime.decoder.decoding) < len(runtime.decoder.rows):
            yield from self._prefill(runtime, runtime.prefill_policy.tokens(begin_s))
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

    def _decode(self, runtime: Runtime) -> Iterator[Outcome]:
        failure = runtime.attempt(runtime.step)
        if failure is not None:
            if isinstance(failure.__cause__, runtime.no_room):
                pass  # answers became longer than was expected: fewer rows have room for theirs
            elif isinstance(failure, EngineOutOfMemory):
                self._row_limit.ran_out(len(runtime.decoder.decoding))
            else:
                self._isolation_limit = _half(runtime.decoder.decoding)
            yield from self._back_off(failure)
            return
        self._row_limit.succeeded()
        for row in runtime.decoder.decoding:
            yield from self._new_tokens(row)

    def _new_tokens(self, row: SlotRow) -> Iterator[Outcome]:
        """Yield the tokens that a row has generated and not yet handed out. A row that started again repeats
        nothing."""
        work = self._work[row.key]
        if len(row.ids) > work.sent:
            new = tuple(row.ids[work.sent :])
            text = work.stream.feed(new) if work.stream is not None else ""
            yield RowDelta(row.key, Tokens(new, tuple(row.logprobs[work.sent :]), text))
            work.sent = len(row.ids)

    def _seat(self, runtime: Runtime) -> Iterator[Outcome]:
        """Give slots to what waits, urgent rows first and else in the order of admission, while it fits."""
        waiting = (work for work in self._work.values() if work.row is None)
        for work in sorted(waiting, key=lambda work: not work.urgent):
            if len(runtime.decoder.rows) >= self._slot_limit:
                return
            if not runtime.decoder.fits(1, runtime.row_tokens(work.prepared)):
                return
            row = self._row(runtime, work)
            failure = runtime.attempt(partial(runtime.seat, row, work.prepared))
            if failure is None:
                work.row = row
            else:
                self.drop(work.key)
                yield RowFailed(work.key, failure)

    def _prefill(self, runtime: Runtime, tokens: int) -> Iterator[Outcome]:
        parts = runtime.decoder.next_input(tokens)[: self._prefill_rows]
        failure = runtime.attempt(lambda: runtime.prefill(parts))
        if failure is None:
            self._prefill_rows = None
            for row in (row for row, _ in parts if row.input is None):
                runtime.keep(row, self._work[row.key].prepared)
                yield from self._new_tokens(row)
            return
        # Tried again with half of the rows, down to the one that is at fault.
        self._prefill_rows = len(parts) // 2 or None
        if len(parts) == 1:
            key = parts[0][0].key
            self.drop(key)
            yield RowFailed(key, failure)

    def _row(self, runtime: Runtime, work: _Work) -> SlotRow:
        from asr_server.engine.draft import Draft
        from asr_server.engine.qwen_asr.decoder import SlotRow

        utterance = work.utterance
        return SlotRow(
            key=work.key,
            budget=work.prepared.budget,
            temperature=utterance.temperature,
            generator=runtime.generator(utterance),
            draft=Draft(utterance.draft) if utterance.draft else None,
            forced=utterance.prefix,
            beginnings=runtime.beginnings(utterance),
            urgent=work.urgent,
            watched=not utterance.language,
        )

    def _back_off(self, failure: AsrError) -> Iterator[Outcome]:
        """Take the younger half of the rows out after a failed step, to start again later in a smaller batch.

        A row that was alone is at fault and fails.
        """
        assert self._runtime is not None
        rows = sorted(self._runtime.decoder.decoding, key=lambda row: row.key)
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
            self.name,
            self._plan.model_id,
            self._plan.device,
            self._plan.dtype,
            model_revision=self._revision,
            model_on_disk=self._on_disk,
        )

    def _on_download(self, size_bytes: int) -> None:
        self._info = replace(self._bare_info(), downloaded_mb=size_bytes // 2**20)
        if time.monotonic() - self._download_logged_s >= _LOG_DOWNLOAD_S:
            self._download_logged_s = time.monotonic()
            logger.info("downloading the model", model=self._plan.model_id, downloaded_mb=self._info.downloaded_mb)
        self._on_load_progress()

    def _publish(self) -> None:
        figures = self._runtime.figures() if self._runtime is not None else {}
        self._info = replace(self._bare_info(), **figures)


def _budget(utterance: Utterance) -> int:
    return token_budget(len(utterance.audio)) + len(utterance.prefix)


def _half(rows: Sequence[SlotRow]) -> int:
    return max(1, len(rows) // 2)
