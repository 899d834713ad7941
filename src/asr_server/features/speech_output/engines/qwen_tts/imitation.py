"""The data of voices to imitate: made of their recordings once, and kept within a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import InvalidReference
from asr_server.engine.torch import memory
from asr_server.features.speech_output.engines.protocol import VoiceSample
from asr_server.features.speech_output.engines.qwen_tts.codec import StreamingDecoder, StreamState
from asr_server.features.speech_output.engines.qwen_tts.loading import SpeechModelParts
from asr_server.features.speech_output.engines.qwen_tts.model import FRAME_SAMPLES
from asr_server.features.speech_output.engines.qwen_tts.prompt import VoicePrompt
from asr_server.features.speech_output.engines.qwen_tts.sdk import mel_spectrogram

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


def check(sample: VoiceSample) -> None:
    """Raises `InvalidReference` where the recording is too short or too long."""
    if not _SHORTEST_S * SPEECH_RATE <= len(sample.audio) <= _LONGEST_S * SPEECH_RATE:
        raise InvalidReference(
            f"A recording of a voice to imitate has {_SHORTEST_S:g} to {_LONGEST_S:g} s.", param="voice"
        )


def frames(sample: VoiceSample) -> int:
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
