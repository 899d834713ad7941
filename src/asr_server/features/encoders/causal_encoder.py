"""The encoder of checkpoints that were tuned to hear no further than a token's own 80 ms: audio is encoded once.

The convolutions look no further ahead than a token's own eight frames, and a piece of 100 frames is padded with zeros
at both ends, whatever its neighbours are. Attention sees the token and as many tokens before it as the checkpoint was
tuned for. So a token never changes once its frames are there. To continue, a stream only needs the last column of each
convolution's input, and the keys and values of the last tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import prefix_cache
from asr_server.engine.qwen_asr.encoder import WindowedEncoder, attention_inputs, layer_output
from asr_server.engine.qwen_asr.frontend import MIN_SAMPLES, RANGE, Frames, LogMel, MelSettings
from asr_server.engine.qwen_asr.loading import Parts
from asr_server.engine.qwen_asr.prefix_cache import PrefixCache, SessionPrefix
from asr_server.engine.qwen_asr.windows import Clip, CopyKv, LoadedEncoder, Window
from asr_server.engine.row import KeptTokens
from asr_server.engine.torch.linear import MakeLinear, plain, strided
from asr_server.engine.torch.passes import Capture
from asr_server.features.encoders.options import CAUSAL, CAUSAL_KEY

TOKEN_FRAMES = 8


@dataclass(frozen=True, slots=True, eq=False)
class EncoderState:
    """The state that a stream needs to continue."""

    frames: int = 0  # frames that were encoded
    # The last input column of each convolution for the open piece, (1, channels, bins, 1); () if no piece is open.
    columns: tuple[torch.Tensor, ...] = ()
    kv: torch.Tensor | None = None  # keys and values (layers, 2, heads, n, dim) of the last tokens

    @property
    def nbytes(self) -> int:
        return sum(own.nbytes for own in self.columns) + (self.kv.nbytes if self.kv is not None else 0)


@dataclass(frozen=True, slots=True, eq=False)
class CausalPrefix(SessionPrefix):
    """The state of a session after a partial."""

    loudest: float  # the largest log10_mel so far
    state: EncoderState  # the encoder's

    @property
    def nbytes(self) -> int:
        return self.probe.nbytes + self.state.nbytes + self.kv.nbytes


@dataclass(slots=True, eq=False)
class CausalClip:
    """A clip whose new frames are to be encoded, window after window."""

    encoder: CausalEncoder
    mel: Frames  # the new frames of whole tokens, clamped, (128, T)
    begin: EncoderState = EncoderState()  # the state before them
    kv: KeptTokens | None = None  # of the session's last partial, None at its first
    loudest: float = -np.inf  # the largest log10_mel up to their end
    state: EncoderState = EncoderState()  # the state after the frames encoded so far

    @property
    def tokens(self) -> int:
        return self.encoder.tokens(self.begin.frames + self.mel.shape[1])

    def windows(self) -> list[ClipWindow]:
        """Return the windows of the new frames. A row that starts again also begins at the kept state."""
        self.state = self.begin
        found, start, size = list[ClipWindow](), 0, self.encoder.window_frames
        while start < self.mel.shape[1]:
            place = self.begin.frames + start
            end = min(self.mel.shape[1], start + size - place % size)
            tokens = self.encoder.tokens(self.begin.frames + end) - self.encoder.tokens(place)
            found.append(ClipWindow(self.mel[:, start:end], False, tokens, self))
            start = end
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ClipWindow(Window):
    """The next frames of a clip, of whole tokens."""

    clip: CausalClip


class CausalAudio:
    """Keeps the state of sessions in `cache`."""

    def __init__(self, encoder: CausalEncoder, mel: LogMel, cache: PrefixCache) -> None:
        self._encoder, self._mel, self._cache = encoder, mel, cache

    def prepare(self, work: Utterance, before: tuple[int, ...]) -> CausalClip:
        """Return the clip's frames after the frames of the session's last partial."""
        begin, kv, loudest = EncoderState(), None, -np.inf
        cached = self._cache.get(work.session) if work.session is not None else None
        if isinstance(cached, CausalPrefix) and cached.continues(work.audio, before):
            begin, kv, loudest = cached.state, cached.kv, cached.loudest
        samples = max(MIN_SAMPLES, len(work.audio))
        frames = self._encoder.whole_frames((samples - self._mel.reach) // self._mel.hop + 1)
        log10_mel = self._mel.log10_mel(work.audio, begin.frames)[:, : frames - begin.frames]
        mel, loudest = causal_features(log10_mel, loudest)
        return CausalClip(self._encoder, mel, begin, kv, loudest)

    def keep(self, work: Utterance, before: tuple[int, ...], clip: Clip, copy: CopyKv) -> None:
        """Keep the state, unless the clip was padded to the shortest length. It is final, whatever audio follows."""
        assert isinstance(clip, CausalClip)
        assert work.session is not None
        if len(work.audio) < MIN_SAMPLES or clip.mel.shape[1] == 0:
            return
        samples = (clip.state.frames - 1) * self._mel.hop + self._mel.reach
        probe = prefix_cache.probe(work.audio, samples)
        kv = copy(len(before) + clip.tokens)
        self._cache.put(work.session, CausalPrefix(before, samples, probe, kv, clip.loudest, clip.state))


def load(parts: Parts, make_linear: MakeLinear) -> LoadedEncoder:
    """Return the causal encoder over the weights of a checkpoint."""
    encoder = CausalEncoder(parts.tower, make_linear)
    return LoadedEncoder(encoder, partial(CausalAudio, encoder), (CAUSAL,))


class CausalEncoder(WindowedEncoder):
    """Hears only the past: the state after some frames is all that the next ones need."""

    def __init__(self, tower: Any, make_linear: MakeLinear = plain) -> None:
        super().__init__(tower, make_linear)
        self.left_tokens = int(getattr(tower.config, CAUSAL_KEY))

    def log_mel(self, settings: MelSettings) -> LogMel:
        return LogMel(settings)

    def record(self, capture: Capture, on_each: Callable[[], None]) -> int:
        return 0

    def tokens(self, frames: int) -> int:
        """Return how many tokens a clip of that many mel frames becomes: those whose frames are all there."""
        pieces, rest = divmod(frames, self.piece_frames)
        return pieces * self.piece_tokens + rest // TOKEN_FRAMES

    def whole_frames(self, frames: int) -> int:
        """Return how many of the first `frames` belong to tokens."""
        pieces, rest = divmod(frames, self.piece_frames)
        return pieces * self.piece_frames + rest // TOKEN_FRAMES * TOKEN_FRAMES

    def __call__(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        """Return embeddings (tokens, output_dim) of each window. The clips' states move only if all windows succeed."""
        found, moved = list[torch.Tensor](), dict[CausalClip, EncoderState]()
        for window in windows:
            assert isinstance(window, ClipWindow)
            embeddings, moved[window.clip] = self.step(moved.get(window.clip, window.clip.state), window.mel)
            found.append(embeddings)
        for clip, state in moved.items():
            clip.state = state
        return found

    def step(self, state: EncoderState, mel: Frames) -> tuple[torch.Tensor, EncoderState]:
        """Return embeddings (t, output_dim) of the next frames (128, T), which are whole tokens, and the state after
        them."""
        weight, size, done = self.convolutions[0].weight, self.piece_frames, state.frames
        mel = torch.as_tensor(mel).to(weight.device, weight.dtype)
        states, columns, frames = list[torch.Tensor](), state.columns, done + mel.shape[1]
        for begin in (done, *range(done - done % size + size, frames, size)):
            end = min(frames, begin - begin % size + size)
            own, columns = self._piece_states(mel[:, begin - done : end - done], columns, begin % size)
            states.append(own)
        embeddings, kv = self._embeddings(torch.cat(states), state.kv)
        return embeddings, EncoderState(frames, columns, kv)

    def _piece_states(
        self, mel: torch.Tensor, columns: tuple[torch.Tensor, ...], place: int
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return the states (t, d_model) of a piece's next frames (128, T), which begin `place` frames into it, and the
        columns after them, () at the piece's end."""
        self.on_layer()
        x, left = mel[None, None], list[torch.Tensor]()
        for number, convolution in enumerate(self.convolutions):
            before = columns[number] if columns else torch.zeros_like(x[..., :1])
            left.append(x[..., -1:].clone())
            # The number of columns is odd only at the end of a piece.
            x = F.pad(torch.cat([before, x], -1), (0, x.shape[-1] % 2))
            x = F.gelu(strided(x, convolution))
        is_end = place + mel.shape[1] == self.piece_frames
        return self.piece_states(x, place // TOKEN_FRAMES)[0], () if is_end else tuple(left)

    def _embeddings(self, x: torch.Tensor, past: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings (t, output_dim) of states (t, d_model) after `past`, and the keys and values to keep."""
        x, count = x[None], past.shape[3] if past is not None else 0
        places = torch.arange(count + x.shape[1], device=x.device)
        back = places[count:, None] - places
        mask, kept = (back >= 0) & (back < self.left_tokens), list[torch.Tensor]()
        for number, layer in enumerate(self._layers):
            self.on_layer()
            q, k, v = attention_inputs(layer, x)
            if past is not None:
                k, v = (torch.cat([old[None], new], 2) for old, new in zip(past[number], (k, v), strict=True))
            h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=layer.scale)
            x = layer_output(layer, x, h)
            start = max(0, k.shape[2] - self.left_tokens + 1)
            kept.append(torch.stack([k[0, :, start:], v[0, :, start:]]))
        return self.project(x)[0], torch.stack(kept)


def causal_features(log10_mel: NDArray[np.float32], loudest: float) -> tuple[NDArray[np.float32], float]:
    """Clamp features as `frontend.features` does, but for an encoder that hears only the past: each frame of (128, T)
    is clamped relative to the loudest value up to it, including `loudest`. Also returns the loudest value up to the
    end.
    """
    if log10_mel.shape[1] == 0:
        return log10_mel, loudest
    so_far = np.maximum(np.maximum.accumulate(log10_mel.max(0)), np.float32(loudest))
    clamped = np.maximum(log10_mel, so_far - np.float32(RANGE))
    return (clamped + np.float32(4)) / np.float32(4), float(so_far[-1])
