"""The engine `qwen`: audio in, hypotheses out, one decode step at a time. It decides which rows get slots, which
prompts run next, what a step decodes, and which rows fail.

`load` imports the libraries; importing this module does not. Every method is called from one thread.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger

from asr_server.core import idle
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.environment import prefer
from asr_server.core.errors import AsrError, EngineFailed, EngineOutOfMemory, TranscriptionFailed
from asr_server.core.setting_types import Dtype
from asr_server.engine import faults, memory
from asr_server.engine.feature import OPENVINO, Plan
from asr_server.engine.loops import token_budget, without_loop
from asr_server.engine.protocol import AS_SET, EngineInfo, Hypothesis, Tokens, Utterance, in_tokens
from asr_server.engine.qwen_asr import checkpoint
from asr_server.schedule.model import Outcome, RowDelta, RowDone, RowFailed

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.rows import AnswerRow
    from asr_server.engine.qwen_asr.runtime import Admitted, Runtime

# Log the progress of a download at most this often.
_LOG_DOWNLOAD_S = 5.0
# Finished rows update the published info at most this often.
_PUBLISH_S = 1.0
# After this many consecutive rows whose numbers left the range of float16, load the model in float32.
_MOST_OVERFLOWS = 3
# Double the row limit after this many passes without a failure (about one short answer).
_RECOVERY_PASSES = 64
# At most this many rows may overtake a row that has no room yet: about as many as are in a batch when it arrives.
MOST_OVERTAKING = 32
# Steps of each warm-up batch.
_WARM_UP_STEPS = 3


class RowLimit:
    """The most rows that may decode together now: fewer than `planned` after memory ran out, and during the search for
    a row that makes steps fail."""

    def __init__(self, planned: int) -> None:
        self._planned = self._fit = planned
        self.isolating: int | None = None  # a further limit during the search for the row at fault
        self._succeeded = 0

    @property
    def rows(self) -> int:
        return min(self.isolating or self._fit, self._fit)

    def ran_out(self, rows: int) -> None:
        self._fit, self._succeeded = max(1, min(self._fit, rows // 2)), 0

    def succeeded(self) -> None:
        """Note a successful pass. From time to time, try more rows: whatever took the memory may be gone."""
        if self._fit == self._planned:
            return
        self._succeeded += 1
        if self._succeeded == _RECOVERY_PASSES:
            self._fit, self._succeeded = min(self._planned, 2 * self._fit), 0


class QwenEngine:
    """Implements `engine.protocol.Engine` over the SDK's modules.

    `on_progress` is called inside passes that may take long, on the thread that runs them. `on_load_progress` is called
    while a load makes progress; during a download, on another thread.
    """

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[], None] = lambda: None,
        on_load_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan, self._on_progress, self._on_load_progress = plan, on_progress, on_load_progress
        self.runtime: Runtime | None = None  # while the model is loaded
        self._work: dict[int, Admitted] = {}
        self._row_limit = RowLimit(plan.max_batch)
        # How many rows' prompts run together during the search for a row that makes this fail; None otherwise.
        self._prefill_rows: int | None = None
        self._begin_s: float | None = None  # of the last step
        self._download_logged_s = self._published_s = -math.inf
        self._answered = self._reloads = False  # a row has succeeded since the load; the weights must be replaced
        self._overflows = 0  # consecutive rows whose numbers left the range of their format
        self._directory: Path | None = None
        self._revision = ""
        self._on_disk = checkpoint.local(plan.model_id, revision=plan.model_revision) is not None
        self._info = self._bare_info()

    @property
    def info(self) -> EngineInfo:
        # Updated by loads, unloads and finished rows.
        return self._info

    @property
    def fits(self) -> bool:
        """True if the weights seem to fit into the free memory, or if their size is unknown."""
        plan = self._plan
        directory = checkpoint.local(plan.model_id, revision=plan.model_revision)
        if directory is None:
            return True
        return memory.would_fit(plan.device, plan.dtype, directory, quantize=plan.quantize)

    @property
    def loaded(self) -> bool:
        return self.runtime is not None

    @property
    def free_slots(self) -> int:
        return self._slots_beside([work for work in self._work.values() if work.waits and not work.lacks_room])

    @property
    def urgent_slots(self) -> int:
        return self._slots_beside([work for work in self._work.values() if work.waits and work.urgent])

    def _slots_beside(self, waiting: Sequence[Admitted]) -> int:
        if self._reloads:
            return 0
        runtime = self.runtime
        if waiting and runtime is not None:
            tokens = sum(work.row.tokens_left if work.row else runtime.tokens(work) for work in waiting)
            # The waiting rows fill the next step.
            if tokens >= runtime.prefill_policy.tokens(self._begin_s):
                return 0
        return max(0, self._row_limit.rows - len(self._work))

    def load(self) -> None:
        """Find, check and load the checkpoint, plan the memory, and run ordinary shapes once.

        Raises `ModelUnavailable`, `EngineOutOfMemory`, `EngineFailed`.
        """
        prefer("HF_HUB_DISABLE_TELEMETRY", "1")  # the hub learns only which weights are requested
        # OpenMP threads spin at every barrier by default. A decode step has hundreds of barriers: with another busy
        # process on the same cores, the spinning made a 7 s clip take 2.6 s instead of 40 ms (2 cores, 2026-11). torch
        # reads the variable when it is first imported.
        prefer("OMP_WAIT_POLICY", "PASSIVE")
        # Passes and cached sessions vary in size for hours: without this, a GPU's free memory becomes fragmented.
        prefer("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        self._answered, self._overflows = False, 0
        directory = self._locate()
        self._revision = checkpoint.revision_of(directory)
        logger.info("checkpoint", model=self._plan.model_id, revision=self._revision)
        self._on_load_progress()
        idle.share_heaps()
        try:
            runtime = self.runtime = _load(directory, self._plan, self._on_conversion)
        except Exception as error:
            raise faults.load_failure(error) from error
        runtime.report_to(self._on_progress)
        self._row_limit = RowLimit(runtime.capacity.rows)
        # Freeze the heap: the libraries create half a million permanent objects, and each full garbage collection would
        # walk them in the middle of a step.
        gc.collect()
        gc.freeze()
        try:
            self._warm_up(runtime)
        except EngineFailed:
            raise  # unloading would fail too
        except Exception:
            self.unload()
            raise
        self._publish()
        runtime.release()

    def _warm_up(self, runtime: Runtime) -> None:
        """Run the first passes, whose set-up would otherwise delay a request and count against ENGINE_HANG_S. Raises
        the error of a row that fails."""
        for items in self._warm_up_batches(runtime):
            self._run_batch(items)
        if self._plan.is_active("use_cuda_graphs"):
            runtime.record(self._on_load_progress)
            # Replayed steps run operations around them that other steps do not.
            for items in islice(self._warm_up_batches(runtime), 1):
                self._run_batch(items)

    def _run_batch(self, items: Sequence[Utterance]) -> None:
        """Run the first steps of a batch, then drop its rows."""
        for key, item in enumerate(items):
            if self.free_slots > 0:
                self.admit(key, item)
        for _ in range(_WARM_UP_STEPS):
            self._on_load_progress()
            for outcome in self.step():
                if isinstance(outcome, RowFailed):
                    raise outcome.error
        for key in list(self._work):
            self.drop(key)

    def _warm_up_batches(self, runtime: Runtime) -> Iterator[Sequence[Utterance]]:
        """Yield the warm-up batches. On a CPU only the first pass is slow. A GPU loads and chooses kernels for each
        kind of shape: steps with ever more rows, prompts of a continued session with a draft, and sampling."""
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

    def unload(self) -> None:
        """Free the weights and the cache, and return freed memory to the driver and the system."""
        self.runtime = None
        self._work.clear()
        gc.unfreeze()
        gc.collect()
        memory.give_back()
        self._publish()

    def _locate(self) -> Path:
        """Return the checkpoint's directory. A reload after an idle time uses the same one, even if the hub has a newer
        one."""
        model_id, revision = self._plan.model_id, self._plan.model_revision
        try:
            if self._directory is None or checkpoint.problem(self._directory, model_id):
                self._directory = checkpoint.locate(model_id, self._on_download, revision=revision)
            self._on_disk = True
        finally:
            self._publish()  # a download is over
        return self._directory

    def admit(self, key: int, item: Utterance, urgent: bool = False) -> None:
        """Admit a row. Its front end runs now, and one of the next steps runs its prefill."""
        assert self.runtime is not None, "admit() before load()"
        prompts = self.runtime.prompts
        item = in_tokens(item, lambda words, forced: prompts.answer(words.text, words.language, forced=forced))
        self._work[key] = work = self.runtime.prepare(key, item, token_budget(len(item.audio)) + len(item.prefix))
        work.urgent = urgent

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Decode for every row whose prompt has run, and hand out finished rows; then run prompts, urgent rows first,
        for about `begin_s` if it is given."""
        runtime = self.runtime
        assert runtime is not None, "step() before load()"
        self._begin_s = begin_s
        if runtime.decoder.decoding:
            yield from self._decode(runtime)
            yield from self._hand_out(runtime)
        yield from self._seat(runtime)
        if len(runtime.decoder.decoding) < len(runtime.decoder.rows):
            yield from self._prefill(runtime, runtime.prefill_policy.tokens(begin_s))
            yield from self._hand_out(runtime)

    def drop(self, key: int) -> None:
        """Forget a row at once. With the last row, unload weights that are to be loaded in another format."""
        if (work := self._work.pop(key, None)) is not None:
            self._take_out(work)
        if self._reloads and not self._work:
            self._reloads = False
            self.unload()

    def _take_out(self, work: Admitted) -> None:
        """Free a row's slot. Its work waits for another slot."""
        if work.row is not None and self.runtime is not None and work.row in self.runtime.decoder.rows:
            self.runtime.drop(work.row)
        work.row = None

    def _fail(self, key: int, error: AsrError) -> RowFailed:
        self.drop(key)
        return RowFailed(key, error)

    def _seat(self, runtime: Runtime) -> Iterator[Outcome]:
        """Give slots to waiting rows that fit, urgent rows first, then in the order of admission.

        A long row gets room once others have left. Until then, a limited number of rows that fit may overtake it.
        """
        waiting = (work for work in self._work.values() if work.row is None)
        passed: list[Admitted] = []
        for work in sorted(waiting, key=lambda work: not work.urgent):
            if len(runtime.decoder.rows) >= self._row_limit.rows:
                return
            if not runtime.decoder.fits(work.row_tokens):
                passed.append(work)
            for other in passed:
                other.lacks_room = other.overtaken < MOST_OVERTAKING
                if not other.lacks_room:
                    return  # it is next, and no other row gets a slot before it
            if work in passed:
                continue
            work.lacks_room = False
            for other in passed:
                other.overtaken += 1
            failure = runtime.attempt(partial(runtime.seat, work))
            if failure is not None:
                yield self._fail(work.key, failure)

    def _may_queue(self, running: Set[AnswerRow] = frozenset()) -> bool:
        """Return True if queuing a step delays no prompt of an urgent row; `running` prompts do not count."""
        return not any(work.urgent and work.waits and work.row not in running for work in self._work.values())

    def _prefill(self, runtime: Runtime, tokens: int) -> Iterator[Outcome]:
        parts = runtime.decoder.next_input(tokens)[: self._prefill_rows]
        failure = runtime.attempt(lambda: runtime.prefill(parts, ahead=self._may_queue({row for row, _ in parts})))
        if failure is None:
            self._prefill_rows = None
            for row in (row for row, _ in parts if row.input is None):
                runtime.keep(row, self._work[row.key])
                yield from self._new_tokens(row)
            return
        # Try again with half of the rows, down to the one at fault.
        self._prefill_rows = len(parts) // 2 or None
        if len(parts) == 1:
            yield self._fail(parts[0][0].key, failure)

    def _decode(self, runtime: Runtime) -> Iterator[Outcome]:
        failure = runtime.attempt(partial(runtime.step, ahead=self._may_queue()))
        if failure is not None:
            decoding = len(runtime.decoder.decoding)
            if runtime.is_full(failure):
                pass  # answers are longer than expected, so fewer rows have room
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

    def _new_tokens(self, row: AnswerRow) -> Iterator[Outcome]:
        """Yield the tokens that a row has generated and not yet handed out. A restarted row repeats no tokens."""
        work = self._work[row.key]
        if len(row.ids) > work.sent:
            new = tuple(row.ids[work.sent :])
            text = work.stream.feed(new) if work.stream is not None else ""
            yield RowDelta(row.key, Tokens(new, tuple(row.logprobs[work.sent :]), text))
            work.sent = len(row.ids)

    def _back_off(self, failure: AsrError) -> Iterator[Outcome]:
        """Take out the younger half of the rows after a failed step. They start again later in a smaller batch.

        If there was only one row, it is at fault and fails.
        """
        assert self.runtime is not None
        rows = sorted(self.runtime.decoder.decoding, key=lambda row: row.key)
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
                work = self._work[row.key]
                self.drop(row.key)
                yield RowDone(row.key, _hypothesis(runtime, work, row))
        if finished:
            self._row_limit.isolating = None
            # Not every time: with live work a row ends in nearly every step, and the GPU's figures take half a
            # millisecond.
            if time.monotonic() - self._published_s >= _PUBLISH_S:
                self._publish()

    def _note_range(self, runtime: Runtime, *, overflowed: bool) -> None:
        """Reload the model in float32 once its rows have ended, if float16 does not suffice and the operator did not
        set it. A single overflow may be the audio's fault; several in sequence, or one in the first row, are not."""
        self._answered |= not overflowed
        self._overflows = self._overflows + 1 if overflowed else 0
        enough = self._overflows >= (_MOST_OVERFLOWS if self._answered else 1)
        is_chosen = self._plan.reason("dtype") == AS_SET
        if not enough or self._reloads or runtime.dtype != Dtype.FLOAT16 or is_chosen:
            return
        logger.warning("numbers leave the range of float16: the model is loaded again, in float32")
        self._plan = replace(self._plan, dtype=Dtype.FLOAT32.value)
        self._reloads = True

    def _bare_info(self) -> EngineInfo:
        return EngineInfo(
            "qwen",
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
        figures = self.runtime.figures() if self.runtime is not None else {}
        self._info = replace(self._bare_info(), **figures)


def _load(directory: Path, plan: Plan, on_progress: Callable[[float], None]) -> Runtime:
    """Load a checked checkpoint. `on_progress` is called while graphs are made. Raises what loading raises."""
    if plan.runtime == OPENVINO:
        from asr_server.engine.qwen_asr import compiled_model

        return compiled_model.load(directory, plan, on_progress)
    from asr_server.engine.qwen_asr import torch_model

    return torch_model.load(directory, plan)


def _silence(seconds: float, **given: Any) -> Utterance:
    return Utterance(np.zeros(int(seconds * SAMPLE_RATE), np.float32), **given)


def _hypothesis(runtime: Runtime, work: Admitted, row: AnswerRow) -> Hypothesis:
    keep = without_loop(row.ids, row.looping) if row.looping else len(row.ids)
    ids = tuple(row.ids[:keep])
    answer = runtime.answers.read(ids, work.utterance.language)
    return Hypothesis(
        text=answer.text,
        language=answer.language,
        ids=ids,
        logprobs=tuple(row.logprobs[:keep]),
        finish=row.finish,
        audio_tokens=work.clip.tokens,
        prompt_tokens=len(work.prompt.before) + len(work.prompt.after),
        passes=row.passes,
        no_speech_prob=math.exp(row.no_speech_logprob) if row.no_speech_logprob is not None else None,
        offsets=answer.offsets,
        pieces=answer.pieces,
    )
