"""A loaded aligner and its one forward pass. Lives as long as the weights do.

The prompt is the audio and then every word with two stamps after it; the head says at each stamp in which time slot the
word begins and ends. Rows are padded after their end, where causal attention never looks, so no row needs a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from asr_server.core.audio import SAMPLE_RATE, samples_to_whole_ms
from asr_server.core.errors import UnsupportedLanguage, UnsupportedValue
from asr_server.engine.protocol import AlignedPiece, AlignItem, Alignment
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.frontend import LogMel
from asr_server.engine.qwen_asr.sdk import Qwen3ForceAlignProcessor
from asr_server.engine.torch import faults
from asr_server.engine.torch.device import prepare
from asr_server.engine.torch.language_model import Attend, LanguageModel

# The languages of the released aligner; those that a checkpoint's configuration names are used in place of them.
LANGUAGES = (
    *("Chinese", "English", "Cantonese", "French", "German", "Italian", "Japanese", "Korean", "Portuguese", "Russian"),
    "Spanish",
)
# The SDK's own limit: beyond it the times collapse.
LONGEST_S = 180.0
# Certainty has limits: a stamp that is sure of a place its neighbours exclude is overruled, and nothing is impossible.
_LEAST_CERTAINTY = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """An item as the model reads it."""

    mel: torch.Tensor  # features (128, T)
    words: tuple[str, ...]
    before: torch.Tensor  # ids (n,) before the audio
    after: torch.Tensor  # ids (n,) after the audio: each word with two stamps after it


class AlignerRuntime:
    """Weights with an encoder and the SDK's text processing over them."""

    def __init__(self, parts: loading.AlignerParts) -> None:
        self._parts = parts
        self._encoder = WindowedEncoder(parts.tower)
        self._mel = LogMel(parts.processor.feature_extractor, self._encoder.device)
        self._language_model = LanguageModel(parts.text)
        self._texts = Qwen3ForceAlignProcessor()
        self._device = parts.head.weight.device
        self._languages = {name.lower() for name in parts.languages or LANGUAGES}
        self.longest_s = min(LONGEST_S, parts.head.out_features * parts.slot_ms / 1000)

    @classmethod
    def load(cls, directory: Path, *, device: str, dtype: str) -> AlignerRuntime:
        """Load a checked aligner; `dtype` as in the plan. Raises `ModelUnavailable`, `EngineOutOfMemory`."""
        try:
            number_format, _ = prepare(device, dtype)
            return cls(loading.load_aligner(directory, device=device, dtype=number_format))
        except Exception as error:
            raise faults.failure(error, "the aligner") from error

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """Call `on_progress` inside of every pass that may take long, from now on; see `Runtime.report_to`."""
        if self._device.type == "cpu":
            self._encoder.on_layer = self._language_model.on_layer = on_progress

    def align(self, items: Sequence[AlignItem]) -> list[Alignment]:
        """Align all items in one pass. Raises `UnsupportedLanguage` or `UnsupportedValue` when one cannot be aligned,
        or the error that the failure of a pass means."""
        try:
            return self._align(items)
        except Exception as error:
            raise faults.failure(error) from error

    @torch.inference_mode()
    def _align(self, items: Sequence[AlignItem]) -> list[Alignment]:
        rows = [self._row(item) for item in items]
        asked = [row for row in rows if row.words]
        chances = iter(self._chances(asked) if asked else [])
        return [
            self._alignment(item, row.words, next(chances)) if row.words else Alignment(())
            for item, row in zip(items, rows, strict=True)
        ]

    def _row(self, item: AlignItem) -> _Row:
        if item.language.lower() not in self._languages:
            raise UnsupportedLanguage(f"The aligner does not know {item.language or 'this language'}.")
        if len(item.audio) > self.longest_s * SAMPLE_RATE:
            raise UnsupportedValue(f"The aligner takes at most {self.longest_s:g} s of audio at a time.")
        words, prompt = self._texts.encode_timestamp(item.text, item.language)
        before, after = prompt.split(self._parts.processor.audio_token)
        return _Row(self._mel(item.audio), tuple(words), self._ids(before), self._ids(after))

    def _ids(self, text: str) -> torch.Tensor:
        return torch.tensor(self._parts.processor.tokenizer(text).input_ids, dtype=torch.long)

    def _chances(self, rows: Sequence[_Row]) -> list[torch.Tensor]:
        """Return the head's scores of the time slots at every stamp of each row, (2 x words, slots), not normalised."""
        windows = [self._encoder.windows(row.mel) for row in rows]
        encoded = iter(self._encoder([window for own in windows for window in own]))
        embed = self._language_model.embed
        inputs = [
            torch.cat(
                [embed(row.before.to(self._device)), *islice(encoded, len(own)), embed(row.after.to(self._device))]
            )
            for row, own in zip(rows, windows, strict=True)
        ]
        padded = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        positions = torch.arange(padded.shape[1], device=self._device).repeat(len(rows))
        hidden = self._language_model(padded.flatten(0, 1), positions, _causal(len(rows))).view(padded.shape)
        stamps = [
            hidden[n, len(given) - len(row.after) : len(given)][(row.after == self._parts.stamp_id).to(self._device)]
            for n, (row, given) in enumerate(zip(rows, inputs, strict=True))
        ]
        logits: torch.Tensor = self._parts.head(torch.cat(stamps))
        return list(logits.split([len(stamp) for stamp in stamps]))

    def _alignment(self, item: AlignItem, words: Sequence[str], chances: torch.Tensor) -> Alignment:
        """Times in order, bounded by the end of the audio."""
        last_ms = samples_to_whole_ms(len(item.audio))
        inside = chances[:, : int(last_ms / self._parts.slot_ms) + 2]
        times = [min(max(0, round(slot * self._parts.slot_ms)), last_ms) for slot in _in_order(chances, inside)]
        return Alignment(tuple(map(AlignedPiece, words, times[::2], times[1::2])))


def _causal(rows: int) -> Attend:
    """Attention of `rows` rows of equal length, each token to those before it in its row."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        groups = q.shape[1] // k.shape[1]
        by_row = [x.unflatten(0, (rows, -1)).transpose(1, 2) for x in (q, k, v)]
        keys, values = (x.repeat_interleave(groups, 1) for x in by_row[1:])
        out = F.scaled_dot_product_attention(by_row[0], keys, values, is_causal=True)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)

    return attend


def _in_order(chances: torch.Tensor, inside: torch.Tensor) -> NDArray[np.floating]:
    """Return the likeliest slot of each stamp, which is the SDK's answer, if they are in order; else the chain's
    medians."""
    likeliest = chances.argmax(-1).cpu().numpy()
    if (np.diff(likeliest) >= 0).all():
        return likeliest.astype(np.float64)
    return medians(inside.float().softmax(-1).cpu().numpy())


def medians(weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Turn (n, slots) probabilities of each stamp alone into (n,) medians in slots, never falling, with fractions.

    The likeliest slots of the stamps may run backwards, and then something has to be repaired by rule. Here the stamps
    are a chain instead, t(1) <= t(2) <= ..., each link as likely as the head says and no order preferred among those
    that do not run backwards; the marginals of the chain are found by the forward-backward recursion (Rabiner, Proc.
    IEEE 77(2), 1989). The median of a marginal is the time with the least expected distance from the truth; medians of
    an ordered chain are in order themselves.

    A stamp that is certain, at a place that its neighbours allow, keeps its slot exactly.
    """
    marginal = _marginals(np.log(np.maximum(weights.astype(np.float64), _LEAST_CERTAINTY)))
    reached = marginal.cumsum(axis=1)
    slot = (reached < 0.5).sum(axis=1)
    rows = np.arange(len(slot))
    inside = marginal[rows, slot]
    # A slot stands for the time half a slot to either side of it.
    return slot - 0.5 + (0.5 - (reached[rows, slot] - inside)) / inside


def _marginals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn (n, slots) logarithms into probabilities of each link of the chain.

    The recursion is in logarithms, since the weight of a place that many neighbours exclude is no number any more.
    """
    before, behind = np.zeros_like(logs), np.zeros_like(logs)
    for n in range(1, len(logs)):
        before[n] = np.logaddexp.accumulate(before[n - 1] + logs[n - 1])
        behind[-1 - n] = np.logaddexp.accumulate((behind[-n] + logs[-n])[::-1])[::-1]
    marginal = before + logs + behind
    marginal = np.exp(marginal - marginal.max(axis=1, keepdims=True))
    scaled: NDArray[np.float64] = marginal / marginal.sum(axis=1, keepdims=True)
    return scaled
