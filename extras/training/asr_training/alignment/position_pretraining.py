"""Pretraining: the early layers learn the position of each audio token in the clip, before timestamps are trained.

Nothing in an audio token gives its position: positions inside the encoder restart every second, and the language model
only has relative ones. To learn it from the timestamps takes most of an hour. With a loss on every token, only for the
early layers and on audio that is encoded once, it takes a minute.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from asr_training.acoustics import audio_tokens
from asr_training.alignment.auxiliary_losses import TOKENS_PER_S, AuxiliaryHeads
from asr_training.alignment.losses import MIDDLE, WORD_HEADS
from asr_training.alignment.network import AlignerNetwork, Row
from asr_training.guided_attention import record_attention_inputs
from asr_training.training import Schedule, learn
from asr_training.utterances import UtteranceMaker

RATE, WARMUP_STEPS = 2e-3, 50
CLIPS, ROWS = 120, 4
LONGEST_S = 30


def pretrain_positions(
    aligner: AlignerNetwork, auxiliary: AuxiliaryHeads, maker: UtteranceMaker, rng: random.Random, minutes: float
) -> float:
    """Train the layers up to the middle one with the position loss, and return the last loss."""
    schedule = Schedule(minutes, peak_rate=RATE, warmup_steps=WARMUP_STEPS)
    clips = _encoded(aligner, maker, rng)
    opening = aligner.network.embedded(aligner.network.ids("<|audio_start|>")).detach()
    with _early_layers(aligner) as layers:
        trained = (*layers[:MIDDLE], layers[MIDDLE].input_layernorm, auxiliary.place)
        parameters = [parameter for part in trained for parameter in part.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
        began, step, loss = time.monotonic(), 0, torch.tensor(0.0)
        while (elapsed_s := time.monotonic() - began) < minutes * 60:
            rows = [_row(opening, clips, rng) for _ in range(ROWS)]
            with (
                torch.autocast("cpu", torch.bfloat16),
                record_attention_inputs(aligner.network, WORD_HEADS) as recorded,
            ):
                aligner.states(rows)
                loss = auxiliary.places(recorded[MIDDLE].states, rows)
            learn(optimiser, loss, schedule.rate(step, elapsed_s))
            step += 1
    return loss.item()


@torch.no_grad()
def _encoded(aligner: AlignerNetwork, maker: UtteranceMaker, rng: random.Random) -> list[Tensor]:
    """Audio embeddings of clips, each of whole seconds, so that they can be concatenated."""
    clips = []
    for _ in range(CLIPS):
        features = aligner.network.features([maker.draw(rng).samples])
        audio, _ = aligner.network.encode(features)
        clips.append(audio[0, : audio_tokens(features.frames[0]) // TOKENS_PER_S * TOKENS_PER_S])
    return clips


def _row(opening: Tensor, clips: Sequence[Tensor], rng: random.Random) -> Row:
    audio = torch.cat(rng.sample(clips, len(clips) // 4))
    first = TOKENS_PER_S * rng.randint(0, max(0, len(audio) // TOKENS_PER_S - LONGEST_S))
    audio = audio[first : first + TOKENS_PER_S * LONGEST_S]
    return Row(torch.cat((opening, audio)), len(opening), len(audio), ())


@contextmanager
def _early_layers(aligner: AlignerNetwork) -> Iterator[Any]:
    """The language model without its late layers, which would only take time."""
    model = aligner.thinker.model
    whole = model.layers
    model.layers = whole[: MIDDLE + 1]
    try:
        yield model.layers
    finally:
        model.layers = whole
