"""The engine `qwen`: audio in, hypotheses out, one decode step at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, EngineOutOfMemory, TranscriptionFailed
from asr_server.core.setting_types import Dtype
from asr_server.engine import memory
from asr_server.engine.feature import OPENVINO, Plan
from asr_server.engine.loops import token_budget, without_loop
from asr_server.engine.protocol import EngineInfo, Hypothesis, Tokens, Utterance, in_tokens
from asr_server.engine.qwen_asr import checkpoint
from asr_server.engine.row_engine import Admitted, RowEngine
from asr_server.schedule.ports import Outcome, RowDelta, RowDone

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.answer import AnswerStream
    from asr_server.engine.qwen_asr.answer_row import AnswerRow
    from asr_server.engine.qwen_asr.runtime import Prepared, Runtime

# The log says so often how far a download is.
_LOG_DOWNLOAD_S = 5.0
# Finished rows change what is published no more often.
_PUBLISH_S = 1.0
# Rows in sequence whose numbers leave the range of float16 until float32 is loaded.
_MOST_OVERFLOWS = 3


@dataclass(slots=True, eq=False)
class _Answering(Admitted["Prepared", "AnswerRow"]):
    """An admitted utterance."""

    stream: AnswerStream | None = None  # reads the tokens that were handed out; None where no text is asked for
    sent: int = 0  # tokens that were handed out


class QwenEngine(RowEngine["Runtime", _Answering]):
    """Implements `engine.protocol.Engine` over the SDK's modules."""

    name = "qwen"

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[], None] = lambda: None,
        on_load_progress: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(plan.max_batch, plan.is_active("use_cuda_graphs"), on_progress, on_load_progress)
        self._plan = plan
        self._download_logged_s = self._published_s = -math.inf
        self._answered = self._reloads = False  # any row since the load; the weights are of no use
        self._overflows = 0  # rows in sequence whose numbers left the range of their format
        self._directory: Path | None = None
        self._revision = ""
        self._on_disk = checkpoint.on_disk(plan.model_id, revision=plan.model_revision)
        self._info = self._bare_info()

    @property
    def info(self) -> EngineInfo:
        """Return the facts as of the last load or unload, or of a row that finished since; at most once a second."""
        return self._info

    @property
    def fits(self) -> bool:
        """True if the weights seem to fit into the free memory, and where their size is not known."""
        plan = self._plan
        directory = checkpoint.local(plan.model_id, revision=plan.model_revision)
        if directory is None:
            return True
        return memory.would_fit(plan.device, plan.dtype, directory, quantize=plan.quantize)

    def _loader(self) -> Callable[[], Runtime]:
        """See `RowEngine`. A checkpoint that was found once is not looked for again."""
        directory = self._locate()
        self._revision = checkpoint.revision_of(directory)
        logger.info("checkpoint", model=self._plan.model_id, revision=self._revision)
        return partial(_load, directory, self._plan, self._on_conversion)

    def load(self) -> None:
        """See `RowEngine.load`."""
        self._answered, self._overflows = False, 0
        super().load()
        assert self._runtime is not None
        self._runtime.release()

    def drop(self, key: int) -> None:
        """Forget a row at once; with the last one, weights of a format that is of no use."""
        super().drop(key)
        if self._reloads and not self._work:
            self._reloads = False
            self.unload()

    def _slots_beside(self, waiting: Sequence[_Answering]) -> int:
        return 0 if self._reloads else super()._slots_beside(waiting)

    def _note_range(self, runtime: Runtime, *, overflowed: bool) -> None:
        """Have the model loaded in float32, once its rows have ended, where float16 was chosen for it and does not
        suffice: one audio may be at fault, and not several one after the other, nor the first of all."""
        self._answered |= not overflowed
        self._overflows = self._overflows + 1 if overflowed else 0
        enough = self._overflows >= (_MOST_OVERFLOWS if self._answered else 1)
        if not enough or self._reloads or runtime.dtype != Dtype.FLOAT16 or self._plan.is_set("dtype"):
            return
        logger.warning("numbers leave the range of float16: the model is loaded again, in float32")
        self._plan = replace(self._plan, dtype=Dtype.FLOAT32.value)
        self._reloads = True

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

    def _warm_up_batches(self, runtime: Runtime) -> Iterator[Sequence[Utterance]]:
        """On a CPU the first pass alone takes longer than those after it. On a GPU kernels are loaded, and chosen, for
        each kind of shape: steps of ever more rows, prompts of a session that goes on with a draft, and chance."""
        alone, most = _silence(1.0), runtime.capacity.rows
        yield [alone]
        if self._plan.device == "cpu":
            return
        yield from ([alone] * min(2**n, most) for n in range(1, (most - 1).bit_length() + 1))
        words = runtime.prompts.answer("one two three four five six seven eight", "English", forced=False)
        for seconds in (8.1, 9.0, 30.0):
            yield [_silence(seconds, draft=words, session="warm-up")]
        yield [_silence(1.0, temperature=1.0)]
        runtime.prefix_cache.clear()

    def admit(self, key: int, item: Utterance, urgent: bool = False) -> None:
        """Take a row in; its front end runs now, its prefill with one of the next steps."""
        assert self._runtime is not None, "admit() before load()"
        prompts = self._runtime.prompts
        item = in_tokens(item, lambda words, forced: prompts.answer(words.text, words.language, forced=forced))
        stream = self._runtime.answer_stream(item.language) if item.stream else None
        budget = token_budget(len(item.audio)) + len(item.prefix)
        self._work[key] = _Answering(key, self._runtime.prepare(item, budget), urgent, stream=stream)

    def _decode(self, runtime: Runtime) -> Iterator[Outcome]:
        failure = runtime.attempt(partial(runtime.step, ahead=self._may_queue()))
        if failure is not None:
            decoding = len(runtime.decoder.decoding)
            if runtime.is_full(failure):
                pass  # answers became longer than was expected: fewer rows have room for theirs
            elif isinstance(failure, EngineOutOfMemory):
                self._row_limit.ran_out(decoding)
            else:
                self._row_limit.isolating = max(1, decoding // 2)
            yield from self._back_off(failure)
            return
        self._row_limit.succeeded()
        for number, row in enumerate(runtime.decoder.decoding):
            # One outcome is enough to say that all rows have moved; only streamed rows have readers.
            if number == 0 or self._work[row.key].stream is not None:
                yield from self._new_tokens(row)

    def _begun(self, runtime: Runtime, work: _Answering) -> Iterator[Outcome]:
        if work.row is not None:
            runtime.keep(work.row, work.prepared)
            yield from self._new_tokens(work.row)

    def _new_tokens(self, row: AnswerRow) -> Iterator[Outcome]:
        """Yield the tokens that a row has generated and not yet handed out. A row that started again repeats
        nothing."""
        work = self._work[row.key]
        if len(row.ids) > work.sent:
            new = tuple(row.ids[work.sent :])
            text = work.stream.feed(new) if work.stream is not None else ""
            yield RowDelta(row.key, Tokens(new, tuple(row.logprobs[work.sent :]), text))
            work.sent = len(row.ids)

    def _back_off(self, failure: AsrError) -> Iterator[Outcome]:
        """Take the younger half of the rows out after a failed step, to start again later in a smaller batch.

        A row that was alone is at fault and fails.
        """
        assert self._runtime is not None
        rows = sorted(self._runtime.decoder.decoding, key=lambda row: row.key)
        if len(rows) == 1:
            self._row_limit.isolating = None
            yield self._fail(rows[0].key, failure)
        for row in rows[max(1, len(rows) // 2) :]:
            self._take_out(self._work[row.key])

    def _hand_out(self, runtime: Runtime) -> Iterator[Outcome]:
        finished = [row for row in runtime.decoder.rows if row.finished]
        for row in finished:
            overflowed = row.overflowed
            self._note_range(runtime, overflowed=overflowed)
            if overflowed:
                error = TranscriptionFailed("The model's numbers left the range of DTYPE on this audio.")
                yield self._fail(row.key, error)
            else:
                prepared = self._work[row.key].prepared
                self.drop(row.key)
                yield RowDone(row.key, _hypothesis(runtime, prepared, row))
        if finished:
            self._row_limit.isolating = None
            # With live work a row ends in nearly every step, and the GPU's figures take half a millisecond.
            if time.monotonic() - self._published_s >= _PUBLISH_S:
                self._publish()

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

    def _on_conversion(self, share: float) -> None:
        self._info = replace(self._bare_info(), converted=round(share, 2))
        self._on_load_progress()

    def _publish(self) -> None:
        self._published_s = time.monotonic()
        figures = self._runtime.figures() if self._runtime is not None else {}
        self._info = replace(self._bare_info(), **figures)


def _load(directory: Path, plan: Plan, on_progress: Callable[[float], None]) -> Runtime:
    """Load a checked checkpoint. `on_progress` is called while graphs are made. Raises what loading raises."""
    for feature in plan.features:
        if feature.encoders is not None:
            feature.encoders.check(plan, directory)
    from asr_server.engine.qwen_asr.runtime import Runtime

    if plan.runtime == OPENVINO:
        from asr_server.engine.qwen_asr import compiled_model

        return Runtime(compiled_model.load(directory, plan, on_progress))
    from asr_server.engine.qwen_asr import torch_model

    return Runtime(torch_model.load(directory, plan))


def _silence(seconds: float, **given: Any) -> Utterance:
    return Utterance(np.zeros(int(seconds * SAMPLE_RATE), np.float32), **given)


def _hypothesis(runtime: Runtime, prepared: Prepared, row: AnswerRow) -> Hypothesis:
    keep = without_loop(row.ids, row.looping) if row.looping else len(row.ids)
    ids = tuple(row.ids[:keep])
    answer = runtime.answers.read(ids, prepared.utterance.language)
    prompt = prepared.prompt
    return Hypothesis(
        text=answer.text,
        language=answer.language,
        ids=ids,
        logprobs=tuple(row.logprobs[:keep]),
        finish=row.finish,
        audio_tokens=prepared.clip.tokens,
        prompt_tokens=len(prompt.before) + len(prompt.after),
        passes=row.passes,
        no_speech_prob=math.exp(row.no_speech_logprob) if row.no_speech_logprob is not None else None,
        offsets=answer.offsets,
        pieces=answer.pieces,
    )
