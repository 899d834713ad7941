"""The training loop: batches of equal seconds, cross-entropy, a CTC head only for training, best checkpoint kept."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from asr_server.core.audio import SAMPLE_RATE
from asr_training.acoustics import Features
from asr_training.losses import alignment_loss, response_losses
from asr_training.network import Network
from asr_training.scoring import Pair, error_rate
from asr_training.transcription import transcribe
from asr_training.utterances import Utterance, UtteranceMaker
from asr_training.vocabulary import joined

CTC_WEIGHT, GUIDANCE_WEIGHT = 0.4, 0.3


@dataclass(frozen=True)
class Schedule:
    """The training time and the learning rate.

    `peak_rate` is reached after `warmup_steps` and falls to 2 % along a cosine of the wall time, so that the schedule
    is complete on a slow machine too. `ctc_steps`: for this many steps the CTC loss trains only its head, so that the
    head's random weights do not disturb a trained encoder. `batch_s`: seconds of audio in a batch.
    """

    minutes: float
    peak_rate: float = 5e-4
    warmup_steps: int = 150
    ctc_steps: int = 0
    batch_s: float = 80.0
    check_minutes: float = 5.0

    def rate(self, step: int, elapsed_s: float) -> float:
        """Learning rate at a step."""
        share = min(1.0, elapsed_s / (self.minutes * 60))
        return self.peak_rate * min(1.0, (step + 1) / self.warmup_steps) * (0.98 * _half_cosine(share) + 0.02)


@dataclass(frozen=True)
class Development:
    """Utterances in development voices, by name of the set; the checkpoint with the least error on them is kept."""

    sets: dict[str, tuple[Utterance, ...]]

    def errors(self, network: Network) -> dict[str, float]:
        """Word error of each set."""
        return {name: error_rate(_pairs(network, utterances)) for name, utterances in self.sets.items()}


def _pairs(network: Network, utterances: Sequence[Utterance]) -> list[Pair]:
    results = transcribe(network, utterances)
    return [
        Pair(utterance.language, joined(utterance.language, utterance.words), result.text)
        for utterance, result in zip(utterances, results, strict=True)
    ]


@dataclass(frozen=True)
class _Learner:
    """The network, the CTC head and the optimiser of both."""

    network: Network
    head: nn.Linear
    optimiser: torch.optim.Optimizer
    rng: random.Random

    @classmethod
    def of(cls, network: Network, rng: random.Random) -> _Learner:
        width = network.model.config.thinker_config.audio_config.d_model
        head = nn.Linear(width, len(network.processor.tokenizer) + 1)
        return cls(network, head, optimiser_of(network.model, head), rng)

    def step(self, items: Sequence[Utterance], rate: float, alone: bool) -> tuple[float, ...]:
        """Take one step at learning rate `rate`. `alone`: the CTC loss reaches only its head. Returns all losses."""
        with torch.autocast("cpu", torch.bfloat16):  # about three times faster than float32 on a CPU with AMX
            response, guidance, alignment = self._losses(items, alone)
        learn(self.optimiser, response + GUIDANCE_WEIGHT * guidance + CTC_WEIGHT * alignment, rate)
        return response.item(), guidance.item(), alignment.item()

    def _losses(self, items: Sequence[Utterance], alone: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Losses of the responses, of the guided heads and of the CTC head, all scalars."""
        features = self.network.features([item.samples for item in items])
        if self.rng.random() < 0.5:
            features = masked(features, self.rng)
        audio, states = self.network.encode(features)
        lengths = [self.network.tokens(frames) for frames in features.frames]
        logits = self.head(states.detach() if alone else states)
        response, guidance = response_losses(self.network, items, audio, lengths)
        return response, guidance, alignment_loss(self.network, items, logits, lengths)


@dataclass(frozen=True)
class Trainer:
    """One training run; `out` receives the best checkpoint so far, `out` with ".log" its history."""

    network: Network
    maker: UtteranceMaker
    development: Development
    schedule: Schedule
    out: Path

    def run(self, seed: int) -> float:
        """Train until the time is over. Returns the best mean word error on the development sets."""
        rng = random.Random(seed)
        learner = _Learner.of(self.network, rng)
        started = checked = time.monotonic()
        best = self._keep_if_better(math.inf, "before")
        for step, items in enumerate(batches(self.maker, rng, self.schedule.batch_s)):
            elapsed_s = time.monotonic() - started
            rate = self.schedule.rate(step, elapsed_s)
            losses = learner.step(items, rate, alone=step < self.schedule.ctc_steps)
            where = f"step {step}, {elapsed_s:.0f} s"
            if step % 100 == 0:
                self._log(f"{where}: rate {rate:.1e}, losses {' '.join(f'{loss:.3f}' for loss in losses)}")
            over = elapsed_s > self.schedule.minutes * 60
            if over or time.monotonic() - checked > self.schedule.check_minutes * 60:
                best, checked = self._keep_if_better(best, where), time.monotonic()
            if over:
                break
        return best

    def _keep_if_better(self, best: float, where: str) -> float:
        self.network.model.eval()
        errors = self.development.errors(self.network)
        self.network.model.train()
        mean = sum(errors.values()) / len(errors)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in errors.items())
        self._log(f"== {where}: {shown}, mean {mean:.4f}, best before {best:.4f}")
        if mean >= best:
            return best
        self.network.save(self.out)
        return mean

    def _log(self, line: str) -> None:
        with open(self.out.with_suffix(".log"), "a") as file:
            file.write(line + "\n")


def optimiser_of(*parts: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of the model and of new heads, which have much larger gradients: each is a group, and
    gradients are clipped per group."""
    groups = [{"params": list(part.parameters())} for part in parts]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), weight_decay=0.02, fused=True)


def learn(optimiser: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    """Take one step at learning rate `rate`."""
    optimiser.zero_grad()
    loss.backward()
    for group in optimiser.param_groups:
        group["lr"] = rate
        nn.utils.clip_grad_norm_(group["params"], 1.0)
    optimiser.step()


def batches(maker: UtteranceMaker, rng: random.Random, batch_s: float) -> Iterator[list[Utterance]]:
    """Endless batches of about `batch_s` seconds; each holds utterances of similar length, for little padding."""
    while True:
        drawn = sorted((maker.draw(rng) for _ in range(160)), key=lambda utterance: len(utterance.samples))
        made: list[list[Utterance]] = [[]]
        for utterance in drawn:
            if len(utterance.samples) * (len(made[-1]) + 1) > batch_s * SAMPLE_RATE:
                made.append([])
            made[-1].append(utterance)
        rng.shuffle(made)
        yield from made


def masked(features: Features, rng: random.Random) -> Features:
    """SpecAugment: a band of mel bins and a few short time ranges of every clip are set to zero."""
    values = features.values.clone()
    for row, frames in zip(values, features.frames, strict=True):
        low = rng.randint(0, 110)
        row[low : low + rng.randint(0, 18)] = 0
        for _ in range(1 + frames // 500):
            start = rng.randint(0, frames)
            row[:, start : start + rng.randint(0, 12)] = 0
    return Features(values, features.frames)


def _half_cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))
