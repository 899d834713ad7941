"""Word times from the decoder's attention to the audio, with the same weights that transcribe.

The words are given, so one pass of the decoder attends from each of their tokens to the encoder's states. The later
half of the layers attends to what is being said (OpenAI's Whisper places words by the same half: openai/whisper,
`timing.py`). The attention is normalised and smoothed as in Whisper, and dynamic programming puts the tokens in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, EngineOutOfMemory, TranscriptionFailed, UnsupportedLanguage
from asr_server.engine.protocol import AlignedPiece, AlignItem, Alignment
from asr_server.features.moonshine import package
from asr_server.features.moonshine.model import SAMPLES_PER_STATE
from asr_server.text import words

if TYPE_CHECKING:
    from asr_server.features.moonshine.engine import MoonshineEngine
    from asr_server.features.moonshine.model import MoonshineModel
    from asr_server.features.moonshine.weights import Array

_SMOOTHED_FRAMES = 7  # as in Whisper, whose frames are of 20 ms
# A pause is 25 dB quieter than the word next to it, measured in steps of 10 ms.
_PAUSE_SHARE = 10 ** (-25 / 10)
_STEP = SAMPLE_RATE // 100
_BYTES_PER_TOKEN = 3


class MoonshineAligner:
    """Implements `engine.protocol.Aligner` with the weights that `engine` has loaded."""

    aligner_id = package.MODEL_ID

    def __init__(self, engine: MoonshineEngine) -> None:
        self._engine = engine
        self._model: MoonshineModel | None = None

    @property
    def loaded(self) -> bool:
        return self._model is not None

    def locate(self) -> None:
        package.locate()

    def load(self) -> None:
        self._model = self._engine.model

    def unload(self) -> None:
        self._model = None

    def cost(self, item: AlignItem) -> int:
        """States of the encoder and tokens of the text."""
        return len(item.audio) // SAMPLES_PER_STATE + len(item.text.encode()) // _BYTES_PER_TOKEN

    def align(self, items: Sequence[AlignItem]) -> Iterator[list[Alignment | AsrError] | None]:
        """Align each item by itself, so that no item can change or fail another."""
        assert self._model is not None, "align() before load()"
        yield [_aligned(self._model, item) for item in items]


def _aligned(model: MoonshineModel, item: AlignItem) -> Alignment | AsrError:
    if item.language != package.LANGUAGE:
        return UnsupportedLanguage(f"The aligner does not know {item.language or 'this language'}.")
    try:
        return _align(model, item)
    except MemoryError:
        return EngineOutOfMemory("No memory is left for aligning this audio.")
    except Exception as error:  # whatever this item provokes, the others are aligned
        failure = TranscriptionFailed("The aligner failed on this audio.")
        failure.__cause__ = error
        return failure


def _align(model: MoonshineModel, item: AlignItem) -> Alignment:
    text = item.text.strip()
    ids = model.tokenizer.encode(text)
    ends = model.tokenizer.read(ids).offsets
    # The tokens of each word. Tokens of punctuation are left out: they attend to the next word.
    spoken = [
        (word, range(bisect_right(ends, start), bisect_left(ends, end) + 1)) for word, start, end in _spoken(text)
    ]
    if not spoken:
        return Alignment(())
    # A token's attention is taken from the position before it, which predicts it. The last position predicts the end.
    attention = model.attention(item.audio, ids)
    rows = [token for _, tokens in spoken for token in tokens]
    starts = _starts(_scores(attention[len(attention) // 2 :])[[*rows, len(ids)]])
    firsts = np.cumsum([0, *(len(tokens) for _, tokens in spoken)])
    samples = np.minimum(starts[firsts] * SAMPLES_PER_STATE, len(item.audio)).tolist()
    pieces = []
    for (word, _), limits in zip(spoken, pairwise(samples), strict=True):
        start, end = _without_pause(item, *limits)
        pieces.append(AlignedPiece(word, 1000 * start // SAMPLE_RATE, 1000 * end // SAMPLE_RATE))
    return Alignment(tuple(pieces))


def _without_pause(item: AlignItem, start: int, end: int) -> tuple[int, int]:
    """Return the samples [start, end) of a word without the pauses around it, to which its tokens attend too.

    The result lies in the region of speech that has most of the word, and begins and ends with sound that is not much
    quieter than the word.
    """
    parts = [(max(start, first), min(end, last)) for first, last in item.speech_regions if first < end and last > start]
    start, end = max(parts, key=lambda part: part[1] - part[0], default=(start, end))
    power = [float(np.square(item.audio[at : min(end, at + _STEP)]).mean()) for at in range(start, end, _STEP)]
    loud = [place for place, own in enumerate(power) if own >= _PAUSE_SHARE * max(power)]
    return (start + loud[0] * _STEP, min(end, start + (loud[-1] + 1) * _STEP)) if loud else (start, end)


def _scores(attention: Array) -> Array:
    """Turn attention (layers, heads, tokens, frames) into how well each frame fits each token, (tokens, frames)."""
    deviation = attention.std(axis=2, keepdims=True)
    normal = (attention - attention.mean(axis=2, keepdims=True)) / (deviation + np.float32(1e-6))
    margin = _SMOOTHED_FRAMES // 2
    padded = np.pad(normal.mean(axis=(0, 1)), ((0, 0), (margin, margin)), mode="edge")
    smooth: Array = np.median(sliding_window_view(padded, _SMOOTHED_FRAMES, axis=1), axis=2)
    return smooth


def _starts(scores: Array) -> NDArray[np.int64]:
    """Return the frames at which the tokens begin, (tokens,): in order, and with the highest sum of scores.

    Each token has at least one frame, unless there are fewer frames than tokens. Frames before the first token count
    nothing.
    """
    tokens, frames = scores.shape
    least = 1 if tokens <= frames else 0
    sums = np.pad(scores.cumsum(axis=1), ((0, 0), (1, 0)))
    best, choices = np.zeros(frames + 1, np.float32), []
    for own in sums:  # best[j]: the highest sum if this token ends before frame j
        gain = best - own
        highest = np.maximum.accumulate(gain)
        choice = np.maximum.accumulate(np.where(gain == highest, np.arange(frames + 1), 0))
        choices.append(np.pad(choice, (least, 0))[: frames + 1])
        best = np.pad(highest, (least, 0), constant_values=-np.inf)[: frames + 1] + own
    starts, at = np.empty(tokens, np.int64), frames
    for token in reversed(range(tokens)):
        starts[token] = at = choices[token][at]
    return starts


def _spoken(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the words of `text` without punctuation, and where their letters and digits begin and end in it."""
    at = 0
    for word in words.split(text):
        start = text.index(word, at)
        at = start + len(word)
        letters = [start + place for place, char in enumerate(word) if char.isalnum()]
        if letters:
            spoken = "".join(char for char in word if char.isalnum() or char in "'’")
            yield spoken, letters[0], letters[-1] + 1
