"""What the network is taught by: responses, guided attention, CTC. No optimiser.

Guided attention: on long clips a small language model loses its place, skips or repeats phrases. The synthesisers say
where every word sounds, so some heads are shown where the next word lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asr_server.demo.recipe.network import Network
from asr_server.demo.recipe.speech import SAMPLE_RATE
from asr_server.demo.recipe.utterances import Utterance
from asr_server.demo.recipe.vocabulary import header, joined

IGNORED = -100
TOKENS_PER_S = 13


@dataclass(frozen=True)
class Guide:
    """A head of the language model that is to look at the next word."""

    layer: int
    head: int


# The heads of layer 1 are those that had found this task by themselves in the weights training was continued from
# (0.5 to 0.8 nats, all others above 2). The one of layer 2 can build on where they looked one token before.
GUIDES = (Guide(1, 0), Guide(1, 1), Guide(1, 2), Guide(2, 2))


@dataclass(frozen=True)
class _Mark:
    """A text token at `place` in the sequence, whose word sounds in the audio tokens from `first` until `last`."""

    place: int
    first: int
    last: int


@dataclass(frozen=True)
class _Row:
    """One sequence: embeddings (tokens, hidden), the labels of its tokens, the marks of its text tokens."""

    inputs: Tensor
    labels: Tensor
    marks: tuple[_Mark, ...]


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
    with _heard_by_heads(network) as seen:
        hidden = network.model.thinker.model(
            inputs_embeds=inputs, attention_mask=mask, position_ids=positions, use_cache=False
        )[0]
    asked = labels[:, 1:] != IGNORED
    response = F.cross_entropy(network.model.thinker.lm_head(hidden[:, :-1][asked]).float(), labels[:, 1:][asked])
    guided = [_guidance(network, guide, *seen[guide.layer], rows) for guide in GUIDES]
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


def _marks(item: Utterance, first: int, count: int, tokens: Any) -> Iterator[_Mark]:
    """Marks of text `tokens` (place, character span); the audio is `count` tokens from place `first` on."""
    letters = [word for word in item.spoken for _ in joined(item.language, (word.text, ""))]
    for place, (_, end) in tokens:
        word = letters[end - 1]
        start = min(int(word.start * TOKENS_PER_S / SAMPLE_RATE), count - 1)
        until = min(int(word.end * TOKENS_PER_S / SAMPLE_RATE) + 1, count)
        yield _Mark(place, first + start, first + max(until, start + 1))


@contextmanager
def _heard_by_heads(network: Network) -> Iterator[dict[int, tuple[Tensor, Any]]]:
    """Collects what goes into the guided layers' attention: hidden states and rotary tables, by layer."""
    seen: dict[int, tuple[Tensor, Any]] = {}

    def keep(layer: int) -> Any:
        return lambda _, __, inputs: seen.__setitem__(layer, (inputs["hidden_states"], inputs["position_embeddings"]))

    layers = network.model.thinker.model.layers
    hooks = [
        layers[layer].self_attn.register_forward_pre_hook(keep(layer), with_kwargs=True)
        for layer in {guide.layer for guide in GUIDES}
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _guidance(network: Network, guide: Guide, states: Tensor, rotary: Any, rows: Sequence[_Row]) -> Tensor:
    """Mean of -log(attention that the guided head pays to the wanted audio tokens)."""
    batch, width, _ = states.shape
    wanted = torch.zeros(batch, width, width, dtype=torch.bool)
    for row, sequence in zip(wanted, rows, strict=True):
        for mark in sequence.marks:
            row[mark.place - 1, mark.first : mark.last] = True
    asked = wanted.any(-1)
    if not asked.any():
        return states.sum() * 0.0
    scores = _scores(network.model.thinker.model.layers[guide.layer].self_attn, guide.head, states, rotary).float()
    scores = scores.masked_fill(~torch.ones(width, width, dtype=torch.bool).tril(), -torch.inf)[asked]
    paid = scores.masked_fill(~wanted[asked], -torch.inf).logsumexp(-1) - scores.logsumexp(-1)
    return -paid.mean()


def _scores(attention: Any, head: int, states: Tensor, rotary: Any) -> Tensor:
    """Attention logits of one head before the causal mask, shape (batch, tokens, tokens)."""
    from qwen_asr.core.transformers_backend.modeling_qwen3_asr import apply_rotary_pos_emb

    shape = (*states.shape[:-1], -1, attention.head_dim)
    queries = attention.q_norm(attention.q_proj(states).view(shape))[:, :, head : head + 1].transpose(1, 2)
    group = head // attention.num_key_value_groups
    keys = attention.k_norm(attention.k_proj(states).view(shape))[:, :, group : group + 1].transpose(1, 2)
    queries, keys = apply_rotary_pos_emb(queries, keys, *rotary)
    return (queries @ keys.transpose(-1, -2))[:, 0] * attention.scaling
