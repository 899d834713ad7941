"""The aligner network: the demo architecture with one class per time slot."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asr_training.acoustics import audio_tokens
from asr_training.alignment.words import SLOT_MS, SLOTS
from asr_training.network import Network
from asr_training.utterances import Utterance
from asr_training.vocabulary import Language

TIMESTAMP = "<timestamp>"
# The model type of the released aligner, for which the SDK builds a head of its own.
MODEL_TYPE = "qwen3_forced_aligner"
# For each layer of the language model the demo layer whose weights it starts with; `None`: a new layer, which adds
# nothing at first.
LAYERS = (0, None, 1, 2, None)
CODE_SCALE = 1.5


@dataclass(frozen=True)
class Row:
    """One sequence: embeddings (tokens, hidden), where the audio lies in it, and the places of its timestamps."""

    inputs: Tensor
    audio_start: int
    audio_tokens: int
    timestamps: tuple[int, ...]


@dataclass(frozen=True)
class AlignerNetwork:
    """A network whose head predicts time slots instead of tokens."""

    network: Network

    @classmethod
    def load(cls, folder: Path) -> AlignerNetwork:
        """Load an aligner checkpoint through the SDK, in float32."""
        return cls(Network.load(folder))

    @classmethod
    def of_recogniser(cls, folder: Path) -> AlignerNetwork:
        """An untrained aligner with the encoder of the recogniser in `folder`; the caller seeds torch."""
        from tools.sdk import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

        demo = Network.load(folder)
        settings = demo.model.config.to_dict()
        thinker = settings["thinker_config"]
        thinker |= {"model_type": MODEL_TYPE, "classify_num": SLOTS, "tie_word_embeddings": False}
        thinker["text_config"] |= {"num_hidden_layers": len(LAYERS), "tie_word_embeddings": False}
        thinker["text_config"].pop("layer_types", None)
        settings |= {"timestamp_segment_time": SLOT_MS, "tie_word_embeddings": False}
        config = Qwen3ASRConfig(**settings)
        model = Qwen3ASRForConditionalGeneration(config)
        _copy_weights(model.thinker, demo.model.thinker)
        return cls(Network(model, demo.processor))

    @property
    def thinker(self) -> Any:
        return self.network.model.thinker

    def row(self, words: Sequence[str], audio: Tensor) -> Row:
        """The sequence of one clip: `audio` (tokens, hidden), then every word with the two timestamps after it."""
        opening = self.network.ids("<|audio_start|>")
        text = self.network.ids("<|audio_end|>" + "".join(f"{word}{TIMESTAMP}{TIMESTAMP}" for word in words))
        inputs = torch.cat((self.network.embedded(opening), audio, self.network.embedded(text)))
        timestamp, first = self.network.model.config.timestamp_token_id, len(opening) + len(audio)
        timestamps = tuple(first + place for place, token in enumerate(text) if token == timestamp)
        return Row(inputs, len(opening), len(audio), timestamps)

    def states(self, rows: Sequence[Row]) -> Tensor:
        """Last hidden states of the language model, (batch, tokens, hidden), padded at the end."""
        inputs = nn.utils.rnn.pad_sequence([row.inputs for row in rows], batch_first=True)
        count, width, _ = inputs.shape
        mask = torch.stack([torch.arange(width) < len(row.inputs) for row in rows]).long()
        positions = torch.arange(width).expand(3, count, -1)
        return self.thinker.model(inputs_embeds=inputs, attention_mask=mask, position_ids=positions, use_cache=False)[0]

    @torch.no_grad()
    def slots(self, items: Sequence[Utterance]) -> list[list[int]]:
        """The slots of all timestamps of each utterance, two a word, without any repair."""
        features = self.network.features([item.samples for item in items])
        audio, _ = self.network.encode(features)
        lengths = [audio_tokens(frames) for frames in features.frames]
        rows = [self.row(item.words, part[:length]) for item, part, length in zip(items, audio, lengths, strict=True)]
        hidden = self.states(rows)
        return [
            self.thinker.lm_head(states[list(row.timestamps)]).argmax(-1).tolist()
            for row, states in zip(rows, hidden, strict=True)
        ]

    def save(self, folder: Path) -> None:
        """Write the checkpoint in float16. The SDK omits the model type of the thinker, so it is added."""
        stored = copy.deepcopy(self.network.model).half()
        stored.config.support_languages = [language.value for language in Language]
        stored.save_pretrained(folder)
        self.network.processor.save_pretrained(folder)
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["thinker_config"]["model_type"] = MODEL_TYPE
        path.write_text(json.dumps(config, indent=2) + "\n")


def time_codes(slots: int, width: int) -> Tensor:
    """One row of sines and cosines for each slot, (slots, width): neighbours have similar codes."""
    periods = 2.0 ** torch.linspace(1.5, math.log2(2.5 * slots), width // 2)
    angles = 2 * math.pi * torch.arange(slots)[:, None] / periods[None]
    return torch.cat((angles.sin(), angles.cos()), -1) * (CODE_SCALE / math.sqrt(width))


def _copy_weights(thinker: Any, demo: Any) -> None:
    """Copy encoder, embeddings and layers of the demo. New layers add nothing at first; the head gets time codes."""
    thinker.audio_tower.load_state_dict(demo.audio_tower.state_dict())
    thinker.model.embed_tokens.load_state_dict(demo.model.embed_tokens.state_dict())
    thinker.model.norm.load_state_dict(demo.model.norm.state_dict())
    for layer, source in zip(thinker.model.layers, LAYERS, strict=True):
        if source is None:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
        else:
            layer.load_state_dict(demo.model.layers[source].state_dict())
    with torch.no_grad():
        thinker.lm_head.weight.copy_(time_codes(SLOTS, thinker.lm_head.in_features))
