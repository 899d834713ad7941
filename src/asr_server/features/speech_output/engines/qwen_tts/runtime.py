"""A loaded model of Qwen3-TTS: sentences to rows, and frames to samples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import (
    AsrError,
    EngineOutOfMemory,
    InvalidReference,
    InvalidValue,
    SpeechFailed,
    TranscriptionFailed,
)
from asr_server.engine import faults
from asr_server.engine.memory import MIB, Limits, plan_capacity
from asr_server.engine.row_runtime import RowRuntime
from asr_server.engine.rows import RowInput
from asr_server.engine.torch import device, memory
from asr_server.engine.torch.passes import AttentionShape
from asr_server.features.speech_output.engines.protocol import Sentence, VoiceSample
from asr_server.features.speech_output.engines.qwen_tts import loading
from asr_server.features.speech_output.engines.qwen_tts.checkpoint import SpeechCheckpoint
from asr_server.features.speech_output.engines.qwen_tts.codec import StreamingDecoder, StreamState
from asr_server.features.speech_output.engines.qwen_tts.eight_bits import layers_of
from asr_server.features.speech_output.engines.qwen_tts.loading import SpeechModelParts
from asr_server.features.speech_output.engines.qwen_tts.model import FRAME_SAMPLES, LANGUAGES, SpeechModel, frame_budget
from asr_server.features.speech_output.engines.qwen_tts.prompt import PromptIds, SpeechPromptBuilder, VoicePrompt
from asr_server.features.speech_output.engines.qwen_tts.sampling import SamplingPair
from asr_server.features.speech_output.engines.qwen_tts.sdk import mel_spectrogram
from asr_server.features.speech_output.engines.qwen_tts.talker import SpokenRow, Talker

# A frame of the recording is a token of every prompt; the model card speaks of 3 s.
_SHORTEST_S, _LONGEST_S = 1.0, 30.0
# As in `extract_speaker_embedding` of the SDK.
_MEL = {
    **{"n_fft": 1024, "num_mels": 128, "sampling_rate": SPEECH_RATE, "hop_size": 256, "win_size": 1024},
    **{"fmin": 0, "fmax": 12_000},
}


@dataclass(frozen=True, slots=True, eq=False)
class Imitation:
    """A voice to imitate, ready for use."""

    prompt: VoicePrompt
    stream: StreamState  # the codec's state after the voice's own recording, from where it continues in that voice

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        frames = self.prompt.frames
        return self.prompt.embedding.nbytes + self.stream.nbytes + (frames.nbytes if frames is not None else 0)


def check_sample(sample: VoiceSample) -> None:
    """Raise `InvalidReference` where the recording is too short or too long."""
    if not _SHORTEST_S * SPEECH_RATE <= len(sample.audio) <= _LONGEST_S * SPEECH_RATE:
        raise InvalidReference(
            f"A recording of a voice to imitate has {_SHORTEST_S:g} to {_LONGEST_S:g} s.", param="voice"
        )


def prompt_frames(sample: VoiceSample) -> int:
    """Return the frames that the recording takes in the prompt: none where its words are not known."""
    return -(-len(sample.audio) // FRAME_SAMPLES) if sample.text else 0


class Imitations:
    """Imitations by `VoiceSample.key`; the least recently used go where there are more than `limit_bytes`."""

    def __init__(self, parts: SpeechModelParts, decoder: StreamingDecoder, limit_bytes: int) -> None:
        self._parts, self._decoder, self._limit_bytes = parts, decoder, limit_bytes
        self._held: OrderedDict[str, Imitation] = OrderedDict()
        # Called before each part of the work on a recording, which on a CPU takes seconds.
        self.on_layer: Callable[[], None] = lambda: None

    @property
    def held_bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(held.nbytes for held in self._held.values())

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()

    def of(self, sample: VoiceSample) -> Imitation:
        """Return the imitation of a recording, which was checked."""
        found = self._held.pop(sample.key, None) or self._made(sample)
        self._held[sample.key] = found
        while self.held_bytes > self._limit_bytes:
            self._held.popitem(last=False)
        return found

    def _made(self, sample: VoiceSample) -> Imitation:
        parts = self._parts
        self.on_layer()
        audio = memory.upload(torch.from_numpy(sample.audio).float()[None], parts.device)
        mel = mel_spectrogram(audio, **_MEL).transpose(1, 2)
        embedding = parts.speaker_encoder(mel.to(parts.dtype))[0]
        if not sample.text:
            return Imitation(VoicePrompt(embedding, None), StreamState())
        self.on_layer()
        (codes,) = parts.codec.encode(audio, torch.ones_like(audio, dtype=torch.long)).audio_codes
        self.on_layer()
        return Imitation(VoicePrompt(embedding, codes), self._decoder.primed(codes))


# A voice to imitate takes about 5 MiB, nearly all of it the codec's state.
_IMITATIONS_BYTES = 64 * MIB
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


class SpeechRuntime(RowRuntime[PreparedSentence, SpokenRow]):
    """Weights with a talker, a codec and prompts over them."""

    def __init__(self, parts: loading.SpeechModelParts, found: SpeechCheckpoint, model: SpeechModel) -> None:
        self._parts = parts
        limits = Limits(model.slots, model.kv_budget_mb, _IMITATIONS_BYTES, model.shares)
        token_bytes = AttentionShape.of(parts.talker.model.config).token_bytes(parts.dtype)
        planned = plan_capacity(str(parts.device), token_bytes, limits, memory.addresses(parts.talker, parts.codec))
        layers = layers_of(model.quantize, parts.device.type)
        talker = Talker(parts.talker, SamplingPair.of_config(found.generation), planned, layers.language_model)
        self._codec = StreamingDecoder(parts.codec.decoder)
        self._prompts = SpeechPromptBuilder(parts, found.abilities, talker.frame_embeds)
        talker.pad = self._prompts.pad
        self._imitations = Imitations(parts, self._codec, _IMITATIONS_BYTES)
        super().__init__(talker, planned, (talker.model, talker.predictor.layers, self._imitations))

    @classmethod
    def load(cls, found: SpeechCheckpoint, model: SpeechModel) -> SpeechRuntime:
        """Load a checked checkpoint. Raises what loading raises."""
        dtype, _ = device.prepare(model.device, model.dtype, model.quantize, threads=model.cpu_threads)
        return cls(loading.load(found, device=model.device, dtype=dtype), found, model)

    def _failure(self, error: Exception) -> AsrError:
        failure = faults.failure(error, "this text")
        if isinstance(failure, TranscriptionFailed):
            spoken = SpeechFailed("The engine failed on a sentence of this text.")
            spoken.__cause__ = failure.__cause__
            return spoken
        return failure

    def _forget(self) -> bool:
        held = self._imitations.held_bytes > 0
        self._imitations.clear()
        return held

    def prepare(self, sentence: Sentence) -> PreparedSentence:
        """Raises what is wrong with the sentence, and `EngineOutOfMemory` where there is never room for it."""
        ids = self._prompts.ids(sentence)
        if sentence.sample is not None:
            check_sample(sentence.sample)
        prepared = PreparedSentence(sentence, ids, frame_budget(sentence.text, LANGUAGES[sentence.language].title()))
        tokens = self.tokens(prepared)
        positions = self._parts.talker.model.config.max_position_embeddings - tokens
        least = min(prepared.budget, _LEAST_FRAMES)
        if positions < least:
            raise InvalidValue("The instructions are too long for this model.", param="instructions")
        room = min(positions, self.capacity.tokens - 1 - tokens)
        if room < least:
            raise EngineOutOfMemory("The text and the voice take more memory than KV_BUDGET_MB allows.")
        return PreparedSentence(sentence, ids, min(prepared.budget, room))

    def tokens(self, prepared: PreparedSentence) -> int:
        """Return the tokens of its prompt, good to a few."""
        ids, sample = prepared.ids, prepared.sentence.sample
        own = len(ids.instructions) + len(ids.reference) + len(ids.text)
        return _AROUND + own + (prompt_frames(sample) if sample is not None else 0)

    def row_tokens(self, prepared: PreparedSentence) -> int:
        """Return the most tokens that it may come to."""
        return self.tokens(prepared) + prepared.budget

    def seat(self, key: int, prepared: PreparedSentence, *, urgent: bool) -> SpokenRow:
        """Give a sentence that fits a slot."""
        sample = prepared.sentence.sample
        voice = self._imitations.of(sample) if sample is not None else None
        row = SpokenRow(
            key=key,
            budget=prepared.budget,
            prompt=self._prompts.build(prepared.ids, voice.prompt if voice is not None else None),
            generator=torch.Generator().manual_seed(prepared.sentence.seed),
            stream=voice.stream if voice is not None else StreamState(),
            urgent=urgent,
        )
        embeds = row.prompt.embeds
        # In one pass: what follows is drawn with the chances of that pass.
        self.decoder.seat(row, RowInput(self.decoder.join, embeds, [], embeds[:0], tail=len(embeds)))
        return row

    def decode(self, *rows: SpokenRow) -> None:
        """Make the samples of the frames that are due, as many in each row."""
        frames = [row.frames[row.sent : row.sent + row.due] for row in rows]
        codes = memory.upload(torch.tensor(frames), self._parts.device)
        found, states = self._codec(codes, [row.stream for row in rows])
        for row, state, samples in zip(rows, states, found.cpu().numpy(), strict=True):
            row.stream, row.sent, row.samples = state, row.sent + codes.shape[1], samples
