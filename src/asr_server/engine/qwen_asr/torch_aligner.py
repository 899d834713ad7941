"""An aligner in torch: one forward pass for all rows.

Rows are padded after their end, where causal attention never looks, so no row needs a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional as F

from asr_server.engine.feature import Plan
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.aligner_runtime import AlignerRow, Scores
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.torch.device import prepare
from asr_server.engine.torch.language_model import Attend, LanguageModel


class TorchAligner:
    """Implements `AlignerModel`."""

    def __init__(self, parts: loading.Parts) -> None:
        self.encoder = WindowedEncoder(parts.tower)
        self.slots: int = parts.head.out_features
        self._language_model, self._head = LanguageModel(parts.text), parts.head
        self._device = parts.device

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """See `AlignerModel`. On a CPU only: on a GPU a pass is queued in milliseconds."""
        if self._device.type == "cpu":
            self.encoder.on_layer = self._language_model.on_layer = on_progress

    def scores(self, rows: Sequence[AlignerRow], stamp: int) -> Iterator[list[Scores] | None]:
        """See `AlignerModel`; all of the work is one part."""
        yield self._scores(rows, stamp)

    @torch.inference_mode()
    def _scores(self, rows: Sequence[AlignerRow], stamp: int) -> list[Scores]:
        windows = [self.encoder.windows(row.mel) for row in rows]
        encoded = iter(self.encoder([window for own in windows for window in own]))
        inputs = [
            torch.cat([self._embed(row.before), *islice(encoded, len(own)), self._embed(row.after)])
            for row, own in zip(rows, windows, strict=True)
        ]
        padded = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        positions = torch.arange(padded.shape[1], device=self._device).repeat(len(rows))
        hidden = self._language_model(padded.flatten(0, 1), positions, _causal(len(rows))).view(padded.shape)
        stamps = [
            hidden[n, [len(given) - len(row.after) + at for at, token in enumerate(row.after) if token == stamp]]
            for n, (row, given) in enumerate(zip(rows, inputs, strict=True))
        ]
        logits = self._head(torch.cat(stamps)).float().cpu()
        return [own.numpy() for own in logits.split([len(one) for one in stamps])]

    def _embed(self, ids: Sequence[int]) -> torch.Tensor:
        return self._language_model.embed(torch.tensor(ids, dtype=torch.long, device=self._device))


def load(directory: Path, plan: Plan) -> TorchAligner:
    """Load a checked aligner."""
    number_format, _ = prepare(plan.device, plan.dtype)
    return TorchAligner(loading.load(directory, device=plan.device, dtype=number_format))


def _causal(rows: int) -> Attend:
    """Attention of `rows` rows of equal length, each token to those before it in its row."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        groups = q.shape[1] // k.shape[1]
        by_row = [x.unflatten(0, (rows, -1)).transpose(1, 2) for x in (q, k, v)]
        keys, values = (x.repeat_interleave(groups, 1) for x in by_row[1:])
        out = F.scaled_dot_product_attention(by_row[0], keys, values, is_causal=True)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)

    return attend
