"""What the network is taught by: responses, guided attention, CTC. No optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asr_server.core.audio import SAMPLE_RATE
from asr_training.guidance import Guide, Mark, guidance, watched
from asr_training.network import Network
from asr_training.utterances import Utterance
from asr_training.vocabulary import header, joined

IGNORED = -100
TOKENS_PER_S = 13


# The heads of layer 1 are those that had found this task by themselves in the weights training was continued from
# (0.5 to 0.8 nats, all others above 2). The one of layer 2 can build on where they looked one token before.
GUIDES = (Guide(1, 0), Guide(1, 1), Guide(1, 2), Guide(2, 2))


@dataclass(frozen=True)
class _Row:
    """One sequence: embeddings (tokens, hidden), the labels of its tokens, the marks of its text tokens."""

    inputs: Tensor
    labels: Tensor
    marks: tuple[Mark, ...]


def response_losses(
    network: Network, items: Sequence[Utterance], audio: Tensor, lengths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of the responses and mean loss of the guided heads.

    `audio`: embeddings of shape (batch, tokens, hidden), of which `lengths` are valid.
    """
    rows = [
        _row(network, item, embeddings[:length]) for item, embeddings, length in zip(items, audio, lengths, strict=True)
    ]
    width = max(len(row.inputs) for row in rows)
    inputs = torch.stack([F.pad(row.inputs, (0, 0, 0, width - len(row.inputs))) for row in rows])
    labels = torch.stack([F.pad(row.labels, (0, width - len(row.labels)), value=IGNORED) for row in rows])
    mask = torch.stack([torch.arange(width) < len(row.inputs) for row in rows]).long()
    positions = torch.arange(width).expand(3, len(rows), -1)
    with watched(network, GUIDES) as seen:
        hidden = network.model.thinker.model(
            inputs_embeds=inputs, attention_mask=mask, position_ids=positions, use_cache=False
        )[0]
    asked = labels[:, 1:] != IGNORED
    response = F.cross_entropy(network.model.thinker.lm_head(hidden[:, :-1][asked]).float(), labels[:, 1:][asked])
    guided = [guidance(network, guide, seen[guide.layer], [row.marks for row in rows]) for guide in GUIDES]
    return response, torch.stack(guided).mean()


def alignment_loss(network: Network, items: Sequence[Utterance], logits: Tensor, lengths: Sequence[int]) -> Tensor:
    """CTC loss of the encoder, whose head gives `logits` of shape (batch, tokens, vocabulary + blank)."""
    targets = [network.ids(joined(item.language, item.words)) for item in items]
    flat = torch.tensor([token for target in targets for token in target], dtype=torch.long)
    if len(flat) == 0:  # a batch of silence, which torch's loss refuses
        return logits.sum() * 0.0
    return F.ctc_loss(
        F.log_softmax(logits.float(), -1).transpose(0, 1),
        flat,
        torch.tensor(lengths),
        torch.tensor([len(target) for target in targets]),
        blank=logits.shape[-1] - 1,
        zero_infinity=True,
    )


def _row(network: Network, item: Utterance, audio: Tensor) -> _Row:
    before, named = network.before(item.context), network.ids(header(item.forced or item.language))
    encoding = network.processor.tokenizer(joined(item.language, item.words), return_offsets_mapping=True)
    opening, target = [*network.after(), *named], [*encoding.input_ids, network.end_of_turn]
    inputs = torch.cat((network.embedded(before), audio, network.embedded([*opening, *target])))
    # A dictated tag is part of the prompt, so nothing is learned from it.
    unlearned = len(inputs) - len(target) - (0 if item.forced else len(named))
    labels = torch.tensor([IGNORED] * unlearned + ([] if item.forced else named) + target)
    places = range(len(inputs) - len(target), len(inputs) - 1)
    return _Row(
        inputs, labels, tuple(_marks(item, len(before), len(audio), zip(places, encoding.offset_mapping, strict=True)))
    )


def _marks(item: Utterance, first: int, count: int, tokens: Any) -> Iterator[Mark]:
    """Marks of text `tokens` (place, character span); the audio is `count` tokens from place `first` on."""
    letters = [word for word in item.spoken for _ in joined(item.language, (word.text, ""))]
    for place, (_, end) in tokens:
        word = letters[end - 1]
        start = min(int(word.start * TOKENS_PER_S / SAMPLE_RATE), count - 1)
        until = min(int(word.end * TOKENS_PER_S / SAMPLE_RATE) + 1, count)
        # The head looks while the token is still to come, one place before it.
        yield Mark(place - 1, first + start, first + max(until, start + 1))
