"""Log-mel features of a batch of clips, equal to WhisperFeatureExtractor's for each clip by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asr_server.core.audio import SAMPLE_RATE
from asr_training.speech import Wave

N_FFT, HOP = 400, 160
FRAMES_PER_PIECE = 100
MIN_SAMPLES = SAMPLE_RATE // 2  # shorter clips are padded, as the SDK does


@dataclass(frozen=True)
class Features:
    """`values`: float32 (batch, 128, frames), zero after each clip's own end. The number of frames is a multiple of
    100, or the longest clip's if all clips are shorter.

    `frames`: the true number of 10 ms frames of each clip.
    """

    values: Tensor
    frames: tuple[int, ...]


def log_mel(clips: Sequence[Wave], filters: Tensor, *, causal: bool = False) -> Features:
    """Return the features of `clips`. `filters` is the extractor's mel filter bank, float32 of shape (201, 128).

    `causal`: no frame depends on samples after its own window. Frames that reach beyond the end are left out, and the
    clamp is relative to the loudest bin so far, not to the loudest bin of the whole clip.
    """
    lengths = [max(len(clip), MIN_SAMPLES) for clip in clips]
    frames = tuple((length - N_FFT // 2) // HOP + 1 if causal else length // HOP for length in lengths)
    # The SDK pads to whole pieces only if there is more than one.
    longest = max(frames)
    padded_frames = longest if longest < FRAMES_PER_PIECE else -(-longest // FRAMES_PER_PIECE) * FRAMES_PER_PIECE
    waves = torch.zeros(len(clips), padded_frames * HOP + N_FFT)
    for row, clip, length in zip(waves, clips, lengths, strict=True):
        # Each clip is reflected at its own ends, as when it is transformed by itself.
        whole = torch.nn.functional.pad(torch.from_numpy(clip.copy()), (0, length - len(clip)))
        mirrored = torch.nn.functional.pad(whole[None], (N_FFT // 2, N_FFT // 2), mode="reflect")[0]
        row[: min(len(mirrored), len(row))] = mirrored[: len(row)]
    spectrum = torch.stft(waves, N_FFT, HOP, window=torch.hann_window(N_FFT), center=False, return_complex=True)
    power = spectrum[..., :padded_frames].abs() ** 2
    values = torch.log10(torch.clamp(filters.T @ power, min=1e-10))
    inside = torch.arange(padded_frames)[None] < torch.tensor(frames)[:, None]
    # The extractor's clamp: 8 decades below the loudest bin of the whole clip.
    loudest = values.masked_fill(~inside[:, None], -torch.inf).amax(dim=1, keepdim=True)
    loudest = loudest.cummax(dim=2).values if causal else loudest.amax(dim=2, keepdim=True)
    values = (torch.maximum(values, loudest - 8.0) + 4.0) / 4.0
    return Features(values * inside[:, None], frames)


def audio_tokens(frames: int) -> int:
    """Return the number of encoder tokens of `frames`: 13 per piece of 100 frames; the rest is halved three times."""
    rest = frames % FRAMES_PER_PIECE
    for _ in range(3 if rest else 0):
        rest = (rest - 1) // 2 + 1
    return rest + frames // FRAMES_PER_PIECE * 13
