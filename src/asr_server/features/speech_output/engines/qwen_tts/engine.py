"""The speech engine `qwen`: sentences in, samples out, one frame a step. Called from one thread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core import idle, settings
from asr_server.core.errors import EngineFailed, ModelUnavailable, SpeechFailed
from asr_server.engine.qwen_asr.checkpoint import Wanted, revision_of
from asr_server.features.speech_output.engines.protocol import (
    Sentence,
    SpeechFinish,
    SpeechInfo,
    SpeechTraits,
    SpokenSentence,
)
from asr_server.features.speech_output.engines.qwen_tts import checkpoint
from asr_server.features.speech_output.engines.qwen_tts.budget import FRAME_SAMPLES
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel, missing
from asr_server.features.speech_output.engines.qwen_tts.voices import Abilities
from asr_server.schedule.ports import Outcome, RowDelta, RowDone, RowFailed

if TYPE_CHECKING:
    from asr_server.features.speech_output.engines.qwen_tts.runtime import PreparedSentence, SpeechRuntime, SpokenRow

QWEN3_TTS = "qwen3-tts"
# At the end of a load: the prompt, the frames of the first samples, and one more.
_WARM_UP_STEPS = 6


@dataclass(slots=True, eq=False)
class _Work:
    """One admitted sentence."""

    key: int
    prepared: PreparedSentence
    urgent: bool  # it goes before work that is not
    row: SpokenRow | None = None  # None while it has no slot


class QwenSpeechEngine:
    """Implements `engine.speech.protocol.SpeechEngine`. torch is imported by `load`, not before.

    `on_progress` is called from inside of passes that may take long, on the thread that makes them; `on_load_progress`
    while a load makes progress; during a download on another thread.
    """

    def __init__(
        self,
        model: SpeechModel,
        on_progress: Callable[[], None] = lambda: None,
        on_load_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = model
        self._wanted = Wanted(model.setting, model.model_id, revision=model.revision)
        self._on_progress, self._on_load_progress = on_progress, on_load_progress
        self._runtime: SpeechRuntime | None = None
        self._work: dict[int, _Work] = {}
        self._found = checkpoint.local(self._wanted)
        self._info = self._bare_info()

    @property
    def traits(self) -> SpeechTraits:
        """Return the traits of the checkpoint; before it is on this machine, those of a released one of that name."""
        abilities = self._found.abilities if self._found is not None else Abilities.of_name(self._model.model_id)
        return abilities.traits

    @property
    def info(self) -> SpeechInfo:
        """Return the facts as of the last load or unload."""
        return self._info

    @property
    def loaded(self) -> bool:
        """True if the weights are in memory."""
        return self._runtime is not None

    @property
    def fits(self) -> bool:
        """True if the weights seem to fit into the free memory, and where their size is not known."""
        if self._found is None:
            return True
        return _fits(self._found.directory, self._model)

    @property
    def free_slots(self) -> int:
        """Return how many more sentences the next steps can start; 0 while as much waits as one step may begin."""
        return self._slots_beside([work for work in self._work.values() if work.row is None])

    @property
    def urgent_slots(self) -> int:
        """Return how many more urgent ones the next steps can start: those begin first."""
        return self._slots_beside([work for work in self._work.values() if work.row is None and work.urgent])

    def _slots_beside(self, waiting: Sequence[_Work]) -> int:
        if self._runtime is None:
            return self._model.slots - len(self._work)
        if waiting and sum(work.prepared.tokens for work in waiting) >= self._runtime.prefill_policy.tokens(None):
            return 0
        return max(0, self._runtime.capacity.rows - len(self._work))

    def load(self) -> None:
        """Find, check and load the checkpoint, and speak a word. Raises `ModelUnavailable`, `EngineOutOfMemory`,
        `EngineFailed`."""
        settings.prefer("HF_HUB_DISABLE_TELEMETRY", "1")  # the hub is asked for weights and told nothing else
        settings.prefer(
            "OMP_WAIT_POLICY", "PASSIVE"
        )  # see `engine/qwen_asr/engine.py`; read at the first import of torch
        if reason := missing():
            raise ModelUnavailable(f"{self._wanted}: {reason}.")
        self._found = checkpoint.locate(self._wanted, self._on_download)
        logger.info("speech checkpoint", model=self._model.model_id, revision=revision_of(self._found.directory))
        from asr_server.features.speech_output.engines.qwen_tts.runtime import SpeechRuntime

        self._on_load_progress()  # the libraries are in memory: on a slow disk they take as long as the weights
        idle.share_heaps()
        self._runtime = SpeechRuntime.load(self._found, self._model)
        self._runtime.report_to(self._on_progress)
        gc.collect()
        gc.freeze()
        try:
            self._warm_up()
            if self._model.cuda_graphs:
                self._record(self._runtime)
        except EngineFailed:
            raise  # unloading would fail too
        except Exception:
            self.unload()
            raise
        self._info = self._bare_info()

    def _warm_up(self) -> None:
        """Run what first passes set up, which would otherwise be waited for; not for a model that imitates, which has
        no voice."""
        if self.traits.imitates:
            return
        self.admit(0, Sentence("one", self.traits.voices[0].id, self.traits.languages[0]))
        for _ in range(_WARM_UP_STEPS):
            self._on_load_progress()
            for outcome in self.step():
                if isinstance(outcome, RowFailed):
                    raise outcome.error
        self.drop(0)

    def _record(self, runtime: SpeechRuntime) -> None:
        failure = runtime.attempt(lambda: runtime.record(self._on_load_progress))
        if isinstance(failure, SpeechFailed):
            raise ModelUnavailable("Frames cannot be recorded on this GPU; set USE_CUDA_GRAPHS=false.") from failure
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
        self._info = self._bare_info()

    def admit(self, key: int, item: Sentence, urgent: bool = False) -> None:
        """Take a sentence in; it begins with one of the next steps. Raises what is wrong with it."""
        assert self._runtime is not None, "admit() before load()"
        self._work[key] = _Work(key, self._runtime.prepare(item), urgent)

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Run one frame of every sentence that has begun, and hand out the samples that are due; then begin others,
        urgent ones first, for about `begin_s` if that is given."""
        assert self._runtime is not None, "step() before load()"
        seated = [self._work[row.key] for row in self._runtime.talker.rows]
        if seated:
            yield from self._frames(self._runtime, seated)
            yield from self._samples(self._runtime)
        yield from self._begin(self._runtime, begin_s)

    def drop(self, key: int) -> None:
        """Forget a sentence at once."""
        work = self._work.pop(key, None)
        if work is not None and work.row is not None and self._runtime is not None:
            self._runtime.drop(work.row)

    def _frames(self, runtime: SpeechRuntime, works: Sequence[_Work]) -> Iterator[Outcome]:
        yield from self._run(runtime, works, runtime.step)
        for work in self._seated(runtime):
            if work.row is not None and work.row.talker.overflowed:
                self.drop(work.key)
                error = SpeechFailed("The model's numbers left the range of DTYPE on a sentence of this text.")
                yield RowFailed(work.key, error)

    def _run(
        self, runtime: SpeechRuntime, works: Sequence[_Work], run: Callable[[Sequence[SpokenRow]], None]
    ) -> Iterator[Outcome]:
        """Run a pass for neighbours; where it fails each by itself, so that one is told to be at fault."""
        rows = [work.row for work in works if work.row is not None]
        failure = runtime.attempt(partial(run, rows))
        if failure is None:
            return
        if len(works) > 1:
            for work in works:
                yield from self._run(runtime, [work], run)
        else:
            self.drop(works[0].key)
            yield RowFailed(works[0].key, failure)

    def _seated(self, runtime: SpeechRuntime) -> list[_Work]:
        return [self._work[row.key] for row in runtime.talker.rows]

    def _samples(self, runtime: SpeechRuntime) -> Iterator[Outcome]:
        """Hand out the samples that are due, and sentences that are finished."""

        def due(work: _Work) -> int:
            return work.row.due if work.row is not None else 0

        works = sorted((work for work in self._seated(runtime) if due(work)), key=due)
        for _, group in groupby(works, key=due):
            together = list(group)
            yield from self._run(runtime, together, runtime.decode)
            for work in together:
                if work.key in self._work and work.row is not None:
                    yield RowDelta(work.key, work.row.samples)
        for work in self._seated(runtime):
            if work.row is not None and work.row.talker.finished:
                self.drop(work.key)
                yield RowDone(work.key, _spoken(work, work.row))

    def _begin(self, runtime: SpeechRuntime, begin_s: float | None) -> Iterator[Outcome]:
        """Seat what waits, urgent ones first and else in the order of admission, while it fits; run the prompts."""
        left, begun = runtime.prefill_policy.tokens(begin_s), list[_Work]()
        waiting = [work for work in self._work.values() if work.row is None]
        for work in sorted(waiting, key=lambda work: not work.urgent):
            if (begun and work.prepared.tokens > left) or not runtime.fits(work.prepared):
                break
            failure = runtime.attempt(partial(_seat, runtime, work))
            if failure is not None:
                self.drop(work.key)
                yield RowFailed(work.key, failure)
                continue
            begun.append(work)
            left -= work.prepared.tokens
        if begun:
            yield from self._run(runtime, begun, runtime.prefill)

    def _on_download(self, size_bytes: int) -> None:
        self._on_load_progress()

    def _bare_info(self) -> SpeechInfo:
        runtime = self._runtime
        return SpeechInfo(
            QWEN3_TTS,
            self._model.model_id,
            self._model.device,
            runtime.dtype if runtime is not None else self._model.dtype,
            slots=runtime.capacity.rows if runtime is not None else 0,
        )


def _seat(runtime: SpeechRuntime, work: _Work) -> None:
    work.row = runtime.seat(work.key, work.prepared)


def _spoken(work: _Work, row: SpokenRow) -> SpokenSentence:
    frames = len(row.talker.frames)
    return SpokenSentence(
        SpeechFinish.END if row.talker.ended else SpeechFinish.BUDGET,
        samples=row.sent * FRAME_SAMPLES,
        text_tokens=len(work.prepared.ids.text),
        frames=frames,
    )


def _fits(directory: Path, model: SpeechModel) -> bool:
    """True if the model seems to fit into the free memory, by the headers of its files. The codec is in float32."""
    import torch

    from asr_server.engine.qwen_asr.footprint import PASS_BYTES, parameters
    from asr_server.engine.torch import memory

    # In 8 bits the layers are there twice while they are made, which is as much as once in 16 bits.
    item_bytes = 4 if model.dtype == "float32" and not model.quantize else 2
    needed = parameters(directory) * item_bytes + parameters(directory / checkpoint.CODEC) * 4 + PASS_BYTES
    return memory.free_bytes(torch.device(model.device)) >= needed
