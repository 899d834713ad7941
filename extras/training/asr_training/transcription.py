"""Transcriptions of many utterances, batched by seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.qwen_asr.tokenizer import ASR_TEXT
from asr_training.network import Network, Prompt
from asr_training.utterances import Utterance
from tools.checkpoints.vocabulary import END_OF_TURN

BATCH_S = 120.0


@dataclass(frozen=True)
class Transcription:
    """A parsed response: the language it names ("None" for no speech, "" if the prompt states it) and the text."""

    language: str
    text: str


@torch.no_grad()
def transcribe(network: Network, utterances: Sequence[Utterance]) -> list[Transcription]:
    """Greedy transcriptions of `utterances`, in their order."""
    order = sorted(range(len(utterances)), key=lambda index: len(utterances[index].samples))
    found: dict[int, Transcription] = {}
    while order:
        count = max(1, int(BATCH_S * SAMPLE_RATE / max(1, len(utterances[order[-1]].samples))))
        rows, order = order[-count:], order[:-count]
        picked = [utterances[row] for row in rows]
        responses = network.respond([u.samples for u in picked], [Prompt(u.context, u.forced) for u in picked])
        found |= {row: _parse(response) for row, response in zip(rows, responses, strict=True)}
    return [found[row] for row in range(len(utterances))]


def _parse(response: str) -> Transcription:
    tag, _, text = response.rpartition(ASR_TEXT)
    return Transcription(tag.removeprefix("language ").strip(), text.replace(END_OF_TURN, "").strip())
