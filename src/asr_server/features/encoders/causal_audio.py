"""The audio of rows for a causal encoder: each frame is computed and encoded once, and so is each token of a prompt.

A frame is taken once all of its samples are there, and clamped to 8 log10_mel below the loudest value up to it, where
the front end of the other encoders waits for the loudest value of the whole clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import prefix_cache
from asr_server.engine.qwen_asr.frontend import MIN_SAMPLES, LogMel, causal_features
from asr_server.engine.qwen_asr.loading import Parts
from asr_server.engine.qwen_asr.prefix_cache import PrefixCache
from asr_server.engine.qwen_asr.windowed_audio import Clip, CopyKv, LoadedEncoder
from asr_server.engine.torch.linear import MakeLinear
from asr_server.features.encoders.causal_encoder import CausalEncoder, EncoderState, Stream, StreamWindow


@dataclass(frozen=True, slots=True, eq=False)
class CausalPrefix:
    """The state of a session after a partial."""

    before: tuple[int, ...]  # the prompt's token ids ahead of the audio
    samples: int  # how many the encoded frames depend on
    probe: NDArray[np.float32]  # the last of those samples
    loudest: float  # the largest log10_mel so far
    state: EncoderState  # of the encoder
    kv: torch.Tensor  # keys and values (layers, 2, heads, n, dim) of `before` and of all tokens so far

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return self.probe.nbytes + self.state.nbytes + self.kv.nbytes

    def continues(self, audio: NDArray[np.float32], before: tuple[int, ...]) -> bool:
        """True if `audio` is the same recording, continued, after the same prompt."""
        same = np.array_equal(prefix_cache.probe(audio, self.samples), self.probe)
        return before == self.before and len(audio) >= self.samples and same


@dataclass(slots=True, eq=False)
class CausalClip:
    """A clip whose new frames are to be encoded."""

    encoder: CausalEncoder
    mel: torch.Tensor  # the new frames of whole tokens, clamped, (128, T)
    loudest: float  # the largest log10_mel up to their end
    cached: CausalPrefix | None  # the session's last partial, None at its first
    stream: Stream  # where the encoding of the clip has come to

    @property
    def tokens(self) -> int:
        """Return the tokens of the whole clip."""
        return self.encoder.tokens(self._begin.frames + self.mel.shape[1])

    @property
    def kv(self) -> torch.Tensor | None:
        """Return keys and values of the tokens so far."""
        return self.cached.kv if self.cached is not None else None

    def windows(self) -> Sequence[StreamWindow]:
        """Return the new frames, from the kept state on, also where the row starts again."""
        self.stream = Stream(self._begin)
        return self.encoder.stream_windows(self.mel, self.stream)

    @property
    def _begin(self) -> EncoderState:
        return self.cached.state if self.cached is not None else EncoderState()


class CausalAudio:
    """Keeps the state of sessions in `cache`."""

    def __init__(self, encoder: CausalEncoder, mel: LogMel, cache: PrefixCache) -> None:
        self._encoder, self._mel, self._cache = encoder, mel, cache

    def prepare(self, work: Utterance, before: tuple[int, ...]) -> CausalClip:
        """Return the clip's new frames after those of the session's last partial."""
        cached = self._cache.get(work.session) if work.session is not None else None
        if not isinstance(cached, CausalPrefix) or not cached.continues(work.audio, before):
            cached = None
        state, loudest = (cached.state, cached.loudest) if cached is not None else (EncoderState(), -np.inf)
        samples = max(MIN_SAMPLES, len(work.audio))
        frames = self._encoder.whole_frames((samples - self._mel.reach) // self._mel.hop + 1)
        log10_mel = self._mel.log10_mel(work.audio, state.frames)[:, : frames - state.frames]
        mel, loudest = causal_features(log10_mel, loudest)
        return CausalClip(self._encoder, mel, loudest, cached, Stream(state))

    def keep(self, work: Utterance, before: tuple[int, ...], clip: Clip, copy: CopyKv) -> None:
        """Keep the state, which is final whatever follows, except where the clip was padded to the shortest length."""
        assert isinstance(clip, CausalClip)
        assert work.session is not None
        if len(work.audio) < MIN_SAMPLES or clip.mel.shape[1] == 0:
            return
        state = clip.stream.state
        samples = (state.frames - 1) * self._mel.hop + self._mel.reach
        kept = CausalPrefix(
            before=before,
            samples=samples,
            probe=prefix_cache.probe(work.audio, samples),
            loudest=clip.loudest,
            state=state,
            kv=copy(len(before) + clip.tokens),
        )
        self._cache.put(work.session, kept)


def load(parts: Parts, make_linear: MakeLinear) -> LoadedEncoder:
    """Return the causal encoder over the weights of a checkpoint."""
    encoder = CausalEncoder(parts.tower, make_linear)
    return LoadedEncoder(encoder, partial(CausalAudio, encoder))
