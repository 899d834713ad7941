"""Auxiliary losses on the audio tokens of the middle layer, by heads only for training: position, word, boundaries.

A timestamp token has to find its word in the audio and predict when it begins. From the timestamps alone, a language
model this small needs hours to learn that. So every audio token also predicts its own slot, its word, the index of that
word in the clip, and the slots in which the word begins and ends. Every timestamp token predicts its word and its index
with the same heads, so that both represent words in the same way. The timestamps then only have to attend and copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr_server.core.audio import SAMPLE_RATE
from asr_training.alignment.network import Row, time_codes
from asr_training.alignment.words import SLOTS, slot_of
from asr_training.speech import SpokenWord
from asr_training.vocabulary import ENGLISH_WORDS, MANDARIN_ITEMS

TOKENS_PER_S, TOKEN_MS = 13, 80
SPREAD_SLOTS = 1.0
# Mandarin is aligned character by character; the last class is for pauses.
WORDS = {word: number for number, word in enumerate((*ENGLISH_WORDS, *sorted(set("".join(MANDARIN_ITEMS)))))}
PAUSE = len(WORDS)
MOST_WORDS = 120  # further words of a clip share the last index
NUMBER_WEIGHT = 0.4
BOUNDARIES_PER_WORD = 2


class AuxiliaryHeads(nn.Module):
    """The heads. `width`: the width of the language model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.place, self.begin, self.end = (nn.Linear(width, SLOTS, bias=False) for _ in range(3))
        self.word = nn.Linear(width, len(WORDS) + 1)
        self.number = nn.Linear(width, MOST_WORDS, bias=False)
        with torch.no_grad():
            for head in (self.place, self.begin, self.end):
                head.weight.copy_(time_codes(SLOTS, width))
            self.number.weight.copy_(time_codes(MOST_WORDS, width))

    def places(self, states: Tensor, rows: Sequence[Row]) -> Tensor:
        """Loss of the slot of every audio token; `states`: of the middle layer, (batch, tokens, hidden)."""
        return soft_loss(
            self.place(_audio_states(states, rows)), torch.cat([_begins(row.audio_tokens)[0] for row in rows])
        )

    def boundaries(self, states: Tensor, rows: Sequence[Row], spoken: Sequence[Sequence[SpokenWord]]) -> Tensor:
        """Loss of the slots in which the word of each audio token begins and ends."""
        found = torch.cat([_words_at(row.audio_tokens, words) for row, words in zip(rows, spoken, strict=True)])
        inside = found[:, 0] != PAUSE
        audio = _audio_states(states, rows)[inside]
        return soft_loss(self.begin(audio), found[inside, 1]) + soft_loss(self.end(audio), found[inside, 2])

    def words(self, states: Tensor, rows: Sequence[Row], spoken: Sequence[Sequence[SpokenWord]]) -> Tensor:
        """Loss of the word and of its index in the clip, at every audio token and every timestamp."""
        found = torch.cat([_words_at(row.audio_tokens, words) for row, words in zip(rows, spoken, strict=True)])
        inside = found[:, 0] != PAUSE
        audio = _audio_states(states, rows)
        stamped = torch.cat([given[list(row.timestamps)] for given, row in zip(states, rows, strict=True)])
        named = torch.tensor(
            [WORDS[word.text] for words in spoken for word in words for _ in range(BOUNDARIES_PER_WORD)]
        )
        numbers = torch.tensor(
            [_number(place) for words in spoken for place in range(len(words)) for _ in range(BOUNDARIES_PER_WORD)]
        )
        name = F.cross_entropy(self.word(audio).float(), found[:, 0]) + F.cross_entropy(
            self.word(stamped).float(), named
        )
        number = soft_loss(self.number(audio[inside]), found[inside, 3]) + soft_loss(self.number(stamped), numbers)
        return name + NUMBER_WEIGHT * number


def soft_loss(logits: Tensor, slots: Tensor) -> Tensor:
    """Cross-entropy against a normal distribution around the true slot; `logits`: (n, slots), `slots`: (n,)."""
    distance = torch.arange(logits.shape[-1])[None] - slots[:, None]
    wanted = torch.softmax(-0.5 * (distance / SPREAD_SLOTS) ** 2, -1)
    return -(wanted * F.log_softmax(logits.float(), -1)).sum(-1).mean()


def _audio_states(states: Tensor, rows: Sequence[Row]) -> Tensor:
    """The states of all audio tokens of all rows, one after another."""
    audio = [
        given[row.audio_start : row.audio_start + row.audio_tokens] for given, row in zip(states, rows, strict=True)
    ]
    return torch.cat(audio)


def _begins(count: int) -> tuple[Tensor, Tensor]:
    """The slot in which each of `count` audio tokens begins, and its middle in samples; 13 tokens of 80 ms a second."""
    tokens = torch.arange(count)
    begins_ms = tokens // TOKENS_PER_S * 1000 + tokens % TOKENS_PER_S * TOKEN_MS
    slots = torch.tensor([slot_of(int(begin) * SAMPLE_RATE // 1000) for begin in begins_ms])
    return slots, (begins_ms + TOKEN_MS // 2) * SAMPLE_RATE // 1000


def _words_at(count: int, words: Sequence[SpokenWord]) -> Tensor:
    """Return (count, 4): the word or `PAUSE` of each audio token, its first and last slot, and its index."""
    middles = _begins(count)[1]
    found = torch.zeros(count, 4, dtype=torch.long)
    found[:, 0] = PAUSE
    for place, word in enumerate(words):
        inside = (middles >= word.start) & (middles < word.end)
        found[inside] = torch.tensor([WORDS[word.text], slot_of(word.start), slot_of(word.end), _number(place)])
    return found


def _number(place: int) -> int:
    return min(place, MOST_WORDS - 1)
