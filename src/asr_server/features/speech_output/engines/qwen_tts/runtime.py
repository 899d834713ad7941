"""A loaded model of Qwen3-TTS and the schedule of its passes: prompts, frames and samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from loguru import logger
from numpy.typing import NDArray

from asr_server.core.errors import (
    AsrError,
    EngineFailed,
    EngineOutOfMemory,
    InvalidValue,
    SpeechFailed,
    TranscriptionFailed,
)
from asr_server.engine.qwen_asr import capacity
from asr_server.engine.qwen_asr.prefill import PrefillPolicy
from asr_server.engine.torch import device, faults, memory, quantization
from asr_server.engine.torch.step_graphs import CudaCapture
from asr_server.features.speech_output.engines.protocol import Sentence
from asr_server.features.speech_output.engines.qwen_tts import imitation, loading
from asr_server.features.speech_output.engines.qwen_tts.budget import frame_budget
from asr_server.features.speech_output.engines.qwen_tts.checkpoint import SpeechCheckpoint
from asr_server.features.speech_output.engines.qwen_tts.codec import StreamingDecoder, StreamState
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel
from asr_server.features.speech_output.engines.qwen_tts.prompt import PromptIds, SpeechPromptBuilder
from asr_server.features.speech_output.engines.qwen_tts.sampling import SamplingPair
from asr_server.features.speech_output.engines.qwen_tts.talker import Talker, TalkerRow
from asr_server.features.speech_output.engines.qwen_tts.voices import LANGUAGES

# A voice to imitate takes about 5 MiB, nearly all of it the codec's state.
_IMITATIONS_BYTES = 64 * memory.MIB
# The first samples go out early; then few passes of the codec matter more.
_FIRST_FRAMES, _NEXT_FRAMES = 4, 8
# Fewer frames than this are no speech.
_LEAST_FRAMES = 25
# Text tokens and codes around the text of a prompt, at most.
_AROUND = 16


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSentence:
    """A sentence in ids."""

    sentence: Sentence
    ids: PromptIds
    budget: int  # the most frames

    @property
    def tokens(self) -> int:
        """Tokens that its prompt has, good to a few."""
        sample = self.sentence.sample
        own = len(self.ids.instructions) + len(self.ids.reference) + len(self.ids.text)
        return _AROUND + own + (imitation.frames(sample) if sample is not None else 0)


@dataclass(slots=True, eq=False)
class SpokenRow:
    """A seated sentence."""

    talker: TalkerRow
    stream: StreamState = field(default_factory=StreamState)  # of the codec
    sent: int = 0  # frames that were decoded
    samples: NDArray[np.float32] | None = None  # of the last frames that were decoded

    @property
    def due(self) -> int:
        """Return how many frames the codec should decode now."""
        waiting = len(self.talker.frames) - self.sent
        enough = _NEXT_FRAMES if self.sent else _FIRST_FRAMES
        return waiting if waiting >= enough or self.talker.finished else 0


class SpeechRuntime:
    """Weights with a talker, a codec and prompts over them. Every call runs in inference mode."""

    def __init__(self, parts: loading.SpeechModelParts, found: SpeechCheckpoint, model: SpeechModel) -> None:
        self._parts = parts
        config = parts.talker.model.config
        token_bytes = capacity.token_bytes(
            layers=config.num_hidden_layers,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            item_bytes=parts.dtype.itemsize,
        )
        free_bytes = memory.free_bytes(parts.device) - memory.mapped_bytes(parts.talker, parts.codec)
        limits = capacity.Limits(model.slots, model.kv_budget_mb, _IMITATIONS_BYTES, model.shares)
        self.capacity = capacity.plan(
            limits, free_bytes=max(0, free_bytes), token_bytes=token_bytes, device=parts.device.type
        )
        sampling = SamplingPair.of_config(found.generation)
        layers = quantization.layers(model.quantize, parts.device.type)
        self.talker = Talker(parts.talker, sampling, self.capacity, layers.language_model)
        self._decoder = StreamingDecoder(parts.codec.decoder)
        self._prompts = SpeechPromptBuilder(parts, found.abilities, self.talker.frame_embeds)
        self.talker.pad = self._prompts.pad
        self._imitations = imitation.Imitations(parts, self._decoder, _IMITATIONS_BYTES)
        self.prefill_policy = PrefillPolicy()

    @classmethod
    def load(cls, found: SpeechCheckpoint, model: SpeechModel) -> SpeechRuntime:
        """Load a checked checkpoint. Raises `ModelUnavailable`, `EngineOutOfMemory`, `EngineFailed`."""
        try:
            if model.cpu_threads:
                torch.set_num_threads(model.cpu_threads)  # of this thread's passes: the one that loads runs them
            dtype, _ = device.prepare(model.device, model.dtype, model.quantize)
            return cls(loading.load(found, device=model.device, dtype=dtype), found, model)
        except Exception as error:
            raise faults.load_failure(error) from error

    @property
    def dtype(self) -> str:
        """Return the number format of the talker."""
        return str(self._parts.dtype).removeprefix("torch.")

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """Call `on_progress` inside of every pass that may take long, from now on; on a CPU only."""
        if self._parts.device.type == "cpu":
            self.talker.layers.on_layer = self.talker.predictor.layers.on_layer = on_progress
            self._imitations.on_part = on_progress

    @torch.inference_mode()
    def record(self, on_each: Callable[[], None]) -> None:
        """Record passes as CUDA graphs, before the first row. Raises what a pass raises."""
        count = self.talker.record(CudaCapture(self._parts.device), on_each)
        logger.info("frames recorded as CUDA graphs", count=count)

    def attempt(self, run: Callable[[], None]) -> AsrError | None:
        """Run passes. Returns why they failed, None if they did not. Raises `EngineFailed`.

        Where memory runs out, what is kept of voices is given back and they are run once more.
        """
        for first in (True, False):
            try:
                with torch.inference_mode():
                    run()
                return None
            except Exception as error:  # whatever one sentence provokes, the others go on
                failure = faults.failure(error, "this text")
            if isinstance(failure, EngineFailed):
                raise failure
            if not (first and isinstance(failure, EngineOutOfMemory)):
                break
            self._imitations.clear()
            memory.give_back()
        if isinstance(failure, TranscriptionFailed):
            spoken = SpeechFailed("The engine failed on a sentence of this text.")
            spoken.__cause__ = failure.__cause__
            return spoken
        return failure

    def prepare(self, sentence: Sentence) -> PreparedSentence:
        """Raises what is wrong with the sentence, and `EngineOutOfMemory` where there is never room for it."""
        ids = self._prompts.ids(sentence)
        if sentence.sample is not None:
            imitation.check(sentence.sample)
        prepared = PreparedSentence(sentence, ids, frame_budget(sentence.text, LANGUAGES[sentence.language].title()))
        positions = self._parts.talker.model.config.max_position_embeddings - prepared.tokens
        least = min(prepared.budget, _LEAST_FRAMES)
        if positions < least:
            raise InvalidValue("The instructions are too long for this model.", param="instructions")
        room = min(positions, self.capacity.tokens - 1 - prepared.tokens)
        if room < least:
            raise EngineOutOfMemory("The text and the voice take more memory than KV_BUDGET_MB allows.")
        return PreparedSentence(sentence, ids, min(prepared.budget, room))

    def fits(self, prepared: PreparedSentence) -> bool:
        """True if the sentence can be seated now."""
        return self.talker.fits(prepared.tokens + prepared.budget)

    def seat(self, key: int, prepared: PreparedSentence) -> SpokenRow:
        """Give a sentence that fits a slot."""
        sample = prepared.sentence.sample
        voice = self._imitations.of(sample) if sample is not None else None
        prompt = self._prompts.build(prepared.ids, voice.prompt if voice is not None else None)
        generator = torch.Generator().manual_seed(prepared.sentence.seed)
        row = TalkerRow(key=key, budget=prepared.budget, prompt=prompt, generator=generator)
        self.talker.seat(row)
        return SpokenRow(row, voice.stream if voice is not None else StreamState())

    def prefill(self, rows: Sequence[SpokenRow]) -> None:
        """Run the prompts of rows that were seated one after the other."""
        began_s = time.perf_counter()
        self.talker.prefill([row.talker for row in rows])
        tokens = sum(len(row.talker.prompt.embeds) for row in rows)
        self.prefill_policy.note_prefill(tokens, time.perf_counter() - began_s)

    def step(self, rows: Sequence[SpokenRow]) -> None:
        """Run one frame more of each of rows in neighbouring slots."""
        began_s = time.perf_counter()
        self.talker.step([row.talker for row in rows])
        self.prefill_policy.note_step(time.perf_counter() - began_s)

    def decode(self, rows: Sequence[SpokenRow]) -> None:
        """Make the samples of the frames that are due, as many in each row."""
        frames = [row.talker.frames[row.sent : row.sent + row.due] for row in rows]
        codes = memory.upload(torch.tensor(frames), self._parts.device)
        found, states = self._decoder(codes, [row.stream for row in rows])
        for row, state, samples in zip(rows, states, found.cpu().numpy(), strict=True):
            row.stream, row.sent, row.samples = state, row.sent + codes.shape[1], samples

    def drop(self, row: SpokenRow) -> None:
        """Take a row out. Raises `EngineFailed`."""
        try:
            with torch.inference_mode():
                self.talker.drop(row.talker)
        except Exception as error:
            raise faults.failure(error, "this text") from error
