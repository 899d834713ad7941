"""The training losses: cross-entropy of responses, guided attention, CTC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asr_server.core.audio import SAMPLE_RATE
from asr_training.guided_attention import GuidedHead, GuidedToken, guided_attention_loss, record_attention_inputs
from asr_training.network import Network
from asr_training.utterances import Utterance
from asr_training.vocabulary import header, joined

IGNORED = -100
TOKENS_PER_S = 13


# The heads of layer 1 already attended to the word in the weights that training continued from (loss 0.5 to 0.8 nats,
# all other heads above 2). The head of layer 2 can use their result for the previous token.
GUIDED_HEADS = (GuidedHead(1, 0), GuidedHead(1, 1), GuidedHead(1, 2), GuidedHead(2, 2))


@dataclass(frozen=True)
class _Row:
    """One sequence: embeddings (tokens, hidden), the labels of its tokens, and its guided text tokens."""

    inputs: Tensor
    labels: Tensor
    guided_tokens: tuple[GuidedToken, ...]


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
    with record_attention_inputs(network, GUIDED_HEADS) as recorded:
        hidden = network.model.thinker.model(
            inputs_embeds=inputs, attention_mask=mask, position_ids=positions, use_cache=False
        )[0]
    learned = labels[:, 1:] != IGNORED
    response = F.cross_entropy(network.model.thinker.lm_head(hidden[:, :-1][learned]).float(), labels[:, 1:][learned])
    guided = [
        guided_attention_loss(network, head, recorded[head.layer], [row.guided_tokens for row in rows])
        for head in GUIDED_HEADS
    ]
    return response, torch.stack(guided).mean()


def alignment_loss(network: Network, items: Sequence[Utterance], logits: Tensor, lengths: Sequence[int]) -> Tensor:
    """CTC loss of the encoder, whose head gives `logits` of shape (batch, tokens, vocabulary + blank)."""
    targets = [network.ids(joined(item.language, item.words)) for item in items]
    flat = torch.tensor([token for target in targets for token in target], dtype=torch.long)
    if len(flat) == 0:  # a batch of silence, for which torch raises an error
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
    # A language tag in the prompt is no target.
    unlearned = len(inputs) - len(target) - (0 if item.forced else len(named))
    labels = torch.tensor([IGNORED] * unlearned + ([] if item.forced else named) + target)
    places = range(len(inputs) - len(target), len(inputs) - 1)
    return _Row(
        inputs,
        labels,
        tuple(_guided_tokens(item, len(before), len(audio), zip(places, encoding.offset_mapping, strict=True))),
    )


def _guided_tokens(item: Utterance, first: int, count: int, tokens: Any) -> Iterator[GuidedToken]:
    """The guided tokens of text `tokens` (place, character span); the audio is `count` tokens from place `first` on."""
    letters = [word for word in item.spoken for _ in joined(item.language, (word.text, ""))]
    for place, (_, end) in tokens:
        word = letters[end - 1]
        start = min(int(word.start * TOKENS_PER_S / SAMPLE_RATE), count - 1)
        until = min(int(word.end * TOKENS_PER_S / SAMPLE_RATE) + 1, count)
        # The head attends while the token is predicted, one place before it.
        yield GuidedToken(place - 1, first + start, first + max(until, start + 1))
