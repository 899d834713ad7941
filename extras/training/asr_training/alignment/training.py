"""The training loop of the aligner: batches of equal seconds, auxiliary heads, the best checkpoint kept."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from asr_training.acoustics import audio_tokens
from asr_training.alignment.auxiliary_losses import AuxiliaryHeads
from asr_training.alignment.boundary_errors import BoundaryErrors, predicted_boundaries
from asr_training.alignment.losses import Losses, aligner_losses
from asr_training.alignment.network import AlignerNetwork
from asr_training.alignment.position_pretraining import pretrain_positions
from asr_training.training import Schedule, batches, learn, masked, optimiser_of
from asr_training.utterances import Utterance, UtteranceMaker


@dataclass(frozen=True)
class AlignerTrainer:
    """One training run; `out` receives the best checkpoint so far, `out` with ".log" its history.

    `development`: utterances in development voices, which choose the checkpoint. `places_minutes`: the time to pretrain
    positions, before the time of the `schedule`. For the first `easy_share` of the schedule's time, utterances come
    from `phrases`, which have few words.
    """

    aligner: AlignerNetwork
    maker: UtteranceMaker
    phrases: UtteranceMaker
    development: tuple[Utterance, ...]
    schedule: Schedule
    out: Path
    places_minutes: float
    easy_share: float

    def run(self, seed: int) -> float:
        """Train until the time is over. Returns the best mean boundary error on the development voices, in ms."""
        rng = random.Random(seed)
        # The fused kernel's backward pass is slow on a CPU: with it a step takes a fifth longer.
        self.aligner.thinker.model.config._attn_implementation = "eager"  # noqa: SLF001
        auxiliary = AuxiliaryHeads(self.aligner.thinker.lm_head.in_features)
        loss = pretrain_positions(self.aligner, auxiliary, self.maker, rng, self.places_minutes)
        self._log(f"positions pretrained: {loss:.3f}")
        optimiser = optimiser_of(self.aligner.network.model, auxiliary)
        started = checked = time.monotonic()
        best = self._keep_if_better(math.inf, "before")
        phrases = batches(self.phrases, rng, self.schedule.batch_s)
        all_kinds = batches(self.maker, rng, self.schedule.batch_s)
        for step in count():
            elapsed_s = time.monotonic() - started
            easy = elapsed_s < self.easy_share * self.schedule.minutes * 60
            items = next(phrases if easy else all_kinds)
            losses = self._losses(auxiliary, [item for item in items if item.words], rng)
            learn(optimiser, losses.total, self.schedule.rate(step, elapsed_s))
            where = f"step {step}, {elapsed_s:.0f} s"
            if step % 50 == 0:
                self._log(f"{where}: {losses}")
            over = elapsed_s > self.schedule.minutes * 60
            if over or time.monotonic() - checked > self.schedule.check_minutes * 60:
                best, checked = self._keep_if_better(best, where), time.monotonic()
            if over:
                break
        return best

    def _losses(self, auxiliary: AuxiliaryHeads, items: Sequence[Utterance], rng: random.Random) -> Losses:
        features = self.aligner.network.features([item.samples for item in items])
        if rng.random() < 0.5:
            features = masked(features, rng)
        with torch.autocast("cpu", torch.bfloat16):
            audio, _ = self.aligner.network.encode(features)
            rows = [
                self.aligner.row(item.words, part[: audio_tokens(frames)])
                for item, part, frames in zip(items, audio, features.frames, strict=True)
            ]
            return aligner_losses(self.aligner, items, rows, auxiliary)

    def _keep_if_better(self, best: float, where: str) -> float:
        model = self.aligner.network.model
        model.eval()
        errors = BoundaryErrors.of(self.development, predicted_boundaries(self.aligner, self.development))
        model.train()
        self._log(f"== {where}: mean {errors.mean_ms:.1f} ms, p95 {errors.p95_ms:.1f} ms, best before {best:.1f} ms")
        if errors.mean_ms >= best:
            return best
        self.aligner.save(self.out)
        return errors.mean_ms

    def _log(self, line: str) -> None:
        with open(self.out.with_suffix(".log"), "a") as file:
            file.write(line + "\n")
