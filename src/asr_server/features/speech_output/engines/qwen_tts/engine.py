"""The speech engine `qwen`: sentences in, samples out, one frame a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core.errors import ModelUnavailable, SpeechFailed
from asr_server.engine import memory
from asr_server.engine.qwen_asr.checkpoint import Wanted, revision_of
from asr_server.engine.row_engine import Admitted, RowEngine
from asr_server.features.speech_output.engines.protocol import (
    Sentence,
    SpeechFinish,
    SpeechInfo,
    SpeechTraits,
    SpokenSentence,
)
from asr_server.features.speech_output.engines.qwen_tts import checkpoint
from asr_server.features.speech_output.engines.qwen_tts.model import FRAME_SAMPLES, Abilities, SpeechModel, missing
from asr_server.schedule.ports import Outcome, RowDelta, RowDone

if TYPE_CHECKING:
    from asr_server.features.speech_output.engines.qwen_tts.runtime import PreparedSentence, SpeechRuntime
    from asr_server.features.speech_output.engines.qwen_tts.talker import SpokenRow

QWEN3_TTS = "qwen3-tts"


class QwenSpeechEngine(RowEngine["SpeechRuntime", Admitted["PreparedSentence", "SpokenRow"]]):
    """Implements `speech_output.engines.protocol.SpeechEngine`."""

    warm_up_steps = 6  # the prompt, the frames of the first samples, and one more

    def __init__(
        self,
        model: SpeechModel,
        on_progress: Callable[[], None] = lambda: None,
        on_load_progress: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(model.slots, model.cuda_graphs, on_progress, on_load_progress)
        self._model = model
        self._wanted = Wanted(model.setting, model.model_id, revision=model.revision)
        self._files = checkpoint.local(self._wanted)
        self._publish()

    @property
    def traits(self) -> SpeechTraits:
        """Return the traits of the checkpoint; before it is on this machine, those of a released one of that name."""
        abilities = self._files.abilities if self._files is not None else Abilities.of_name(self._model.model_id)
        return abilities.traits

    @property
    def info(self) -> SpeechInfo:
        """Return the facts as of the last load or unload."""
        return self._info

    @property
    def fits(self) -> bool:
        """True if the weights seem to fit into the free memory, and where their size is not known. The codec is in
        float32."""
        if self._files is None:
            return True
        directory = self._files.directory
        return memory.would_fit(self._model, directory, in_float32=directory / checkpoint.CODEC)

    def _loader(self) -> Callable[[], SpeechRuntime]:
        if reason := missing():
            raise ModelUnavailable(f"{self._wanted}: {reason}.")
        self._files = checkpoint.locate(self._wanted, lambda size_bytes: self._on_load_progress())
        logger.info("speech checkpoint", model=self._model.model_id, revision=revision_of(self._files.directory))
        from asr_server.features.speech_output.engines.qwen_tts.runtime import SpeechRuntime

        return partial(SpeechRuntime.load, self._files, self._model)

    def _warm_up_batches(self, runtime: SpeechRuntime) -> Iterator[Sequence[Sentence]]:
        """Yield a word, but not for a model that imitates, which has no voice."""
        if not self.traits.imitates:
            yield [Sentence("one", self.traits.voices[0].id, self.traits.languages[0])]

    def admit(self, key: int, item: Sentence, urgent: bool = False) -> None:
        """Take a sentence in; it begins with one of the next steps. Raises what is wrong with it."""
        assert self._runtime is not None, "admit() before load()"
        self._work[key] = Admitted(key, self._runtime.prepare(item), urgent)

    def _decode(self, runtime: SpeechRuntime) -> Iterator[Outcome]:
        return self._run(runtime, runtime.decoder.decoding, runtime.step)

    def _run(self, runtime: SpeechRuntime, rows: Sequence[SpokenRow], run: Callable[..., None]) -> Iterator[Outcome]:
        """Run a pass for rows; where it fails for each by itself, so that one is told to be at fault. No row begins
        again, as one that generates words does: its samples are being heard."""
        failure = runtime.attempt(partial(run, *rows))
        if failure is None:
            return
        if len(rows) == 1:
            yield self._fail(rows[0].key, failure)
        else:
            for row in rows:
                yield from self._run(runtime, [row], run)

    def _hand_out(self, runtime: SpeechRuntime) -> Iterator[Outcome]:
        """Hand out the samples that are due, and sentences that are finished."""
        for row in [row for row in runtime.decoder.rows if row.overflowed]:
            error = SpeechFailed("The model's numbers left the range of DTYPE on a sentence of this text.")
            yield self._fail(row.key, error)
        due = sorted((row for row in runtime.decoder.rows if row.due), key=lambda row: row.due)
        for _, group in groupby(due, key=lambda row: row.due):
            together = list(group)
            yield from self._run(runtime, together, runtime.decode)
            for row in together:
                if row.key in self._work:
                    yield RowDelta(row.key, row.samples)
        for row in [row for row in runtime.decoder.rows if row.finished]:
            prepared = self._work[row.key].prepared
            self.drop(row.key)
            yield RowDone(row.key, _spoken(prepared, row))

    def _publish(self) -> None:
        runtime = self._runtime
        self._info = SpeechInfo(
            QWEN3_TTS,
            self._model.model_id,
            self._model.device,
            runtime.dtype if runtime is not None else self._model.dtype,
            slots=runtime.capacity.rows if runtime is not None else 0,
        )


def _spoken(prepared: PreparedSentence, row: SpokenRow) -> SpokenSentence:
    return SpokenSentence(
        SpeechFinish.END if row.ended else SpeechFinish.BUDGET,
        samples=row.sent * FRAME_SAMPLES,
        text_tokens=len(prepared.ids.text),
        frames=len(row.frames),
    )
