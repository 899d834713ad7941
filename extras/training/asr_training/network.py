"""The demo network for training: windowed encoder, prompts, batched greedy decoding.

The SDK's own forward pass attends over the whole clip unless flash-attention is present; here attention is limited to
the windows of 104 tokens of the released models, on every machine.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asr_training.acoustics import FRAMES_PER_PIECE, Features, audio_tokens, log_mel
from asr_training.speech import Wave
from asr_training.vocabulary import Language, header
from tools.checkpoints.vocabulary import END_OF_TEXT, END_OF_TURN

WINDOW_TOKENS = 104


@dataclass(frozen=True)
class Network:
    """A loaded checkpoint: the SDK's model and processor."""

    model: Any
    processor: Any

    @classmethod
    def load(cls, folder: Path) -> Network:
        """Load a checkpoint through the SDK, in float32."""
        from tools.sdk import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

        model = Qwen3ASRForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        return cls(model, Qwen3ASRProcessor.from_pretrained(folder))

    @property
    def end_of_turn(self) -> int:
        """The id that ends a response."""
        return int(self.processor.tokenizer.convert_tokens_to_ids(END_OF_TURN))

    def ids(self, text: str) -> list[int]:
        return list(self.processor.tokenizer(text).input_ids)

    def embedded(self, ids: Sequence[int]) -> Tensor:
        """Embeddings of `ids`, shape (tokens, hidden)."""
        return self.model.thinker.model.embed_tokens(torch.tensor(ids, dtype=torch.long))

    def features(self, clips: Sequence[Wave]) -> Features:
        """Log-mel features of `clips`."""
        filters = torch.tensor(self.processor.feature_extractor.mel_filters, dtype=torch.float32)
        return log_mel(clips, filters)

    def tokens(self, frames: int) -> int:
        """Audio tokens of a clip of `frames`."""
        return audio_tokens(frames)

    def before(self, context: str) -> list[int]:
        """Ids of the prompt up to the audio."""
        return self.ids(f"<|im_start|>system\n{context}<|im_end|>\n<|im_start|>user\n<|audio_start|>")

    def after(self) -> list[int]:
        """Ids of the prompt between the audio and the response."""
        return self.ids("<|audio_end|><|im_end|>\n<|im_start|>assistant\n")

    def encode(self, features: Features) -> tuple[Tensor, Tensor]:
        """Audio embeddings (batch, tokens, hidden of the LLM) and the encoder's last states (batch, tokens, d_model).

        Rows are valid up to `tokens(frames)`.
        """
        tower = self.model.thinker.audio_tower
        states = _convolved(tower, features.values)
        lengths = torch.tensor([self.tokens(count) for count in features.frames])
        states = tower.ln_post(self.attend(states, lengths))
        return tower.proj2(tower.act(tower.proj1(states))), states

    def attend(self, states: Tensor, lengths: Tensor) -> Tensor:
        """The encoder layers over (batch, tokens, d_model), of which `lengths` are valid."""
        return _attended(self.model.thinker.audio_tower, states, lengths)

    def respond(self, clips: Sequence[Wave], prompts: Sequence[Prompt] | None = None, limit: int = 220) -> list[str]:
        """Greedy responses to `clips`, tags included, at most `limit` tokens each."""
        features = self.features(clips)
        audio, _ = self.encode(features)
        prompts = prompts or [Prompt()] * len(clips)
        rows = [
            torch.cat(
                (
                    self.embedded(self.before(prompt.context)),
                    audio[row, : self.tokens(features.frames[row])],
                    self.embedded([*self.after(), *self.ids(header(prompt.forced) if prompt.forced else "")]),
                )
            )
            for row, prompt in enumerate(prompts)
        ]
        return [self.processor.tokenizer.decode(ids) for ids in self._greedy(rows, limit)]

    def _greedy(self, rows: Sequence[Tensor], limit: int) -> list[list[int]]:
        """Decode prompts of different lengths side by side, padded on the left."""
        from transformers import DynamicCache

        width = max(len(row) for row in rows)
        step = torch.stack([F.pad(row, (0, 0, width - len(row), 0)) for row in rows])
        mask = torch.stack([torch.arange(width) >= width - len(row) for row in rows]).long()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        responses: list[list[int]] = [[] for _ in rows]
        cache, open_rows = DynamicCache(), set(range(len(rows)))
        for _ in range(limit):
            hidden = self.model.thinker.model(
                inputs_embeds=step,
                attention_mask=mask,
                position_ids=positions[None].expand(3, -1, -1),
                past_key_values=cache,
                use_cache=True,
            )[0]
            chosen = self.model.thinker.lm_head(hidden[:, -1]).argmax(-1).tolist()
            open_rows -= {row for row in open_rows if chosen[row] == self.end_of_turn}
            for row in open_rows:
                responses[row].append(chosen[row])
            if not open_rows:
                break
            step = self.embedded(chosen)[:, None]
            mask = F.pad(mask, (0, 1), value=1)
            positions = positions[:, -1:] + 1
        return responses

    def save(self, folder: Path) -> None:
        """Write the checkpoint in float16, with the end-of-sequence ids in its generation config."""
        tokenizer = self.processor.tokenizer
        stored = copy.deepcopy(self.model).half()
        stored.config.support_languages = [language.value for language in Language]
        stored.generation_config.eos_token_id = [self.end_of_turn, tokenizer.convert_tokens_to_ids(END_OF_TEXT)]
        stored.save_pretrained(folder)
        self.processor.save_pretrained(folder)


@dataclass(frozen=True)
class Prompt:
    """The model's input besides the audio: a context and a forced language."""

    context: str = ""
    forced: Language | None = None


def _convolved(tower: Any, values: Tensor) -> Tensor:
    """(batch, 128, frames) to (batch, tokens, d_model); each piece of 100 frames separately, with its own positions."""
    batch, bins, frames = values.shape
    piece = min(frames, FRAMES_PER_PIECE)
    image = values.view(batch, bins, -1, piece).transpose(1, 2).reshape(-1, 1, bins, piece)
    for layer in (tower.conv2d1, tower.conv2d2, tower.conv2d3):
        image = F.gelu(layer(image))
    count, channels, height, width = image.shape
    states = tower.conv_out(image.permute(0, 3, 1, 2).reshape(count, width, channels * height))
    states = states + tower.positional_embedding.positional_embedding[:width]
    return states.reshape(batch, -1, states.shape[-1])


def _attended(tower: Any, states: Tensor, lengths: Tensor) -> Tensor:
    """The encoder layers, with attention inside windows of 104 tokens."""
    batch, tokens, width = states.shape
    window = min(tokens, WINDOW_TOKENS)
    padded = -(-tokens // window) * window
    states = F.pad(states, (0, 0, 0, padded - tokens)).reshape(-1, window, width)
    valid = (torch.arange(padded)[None] < lengths[:, None]).view(-1, window)
    # A window that is all padding would give NaN if it attended to nothing.
    keys = (valid | ~valid.any(-1, keepdim=True))[:, None, None]
    for layer in tower.layers:
        states = layer_output(layer, states, keys)
    return states.reshape(batch, padded, width)[:, :tokens]


def layer_output(layer: Any, states: Tensor, keys: Tensor) -> Tensor:
    """One encoder layer; `keys` is True where a token may be seen, broadcast to (batch, heads, tokens, tokens)."""
    attention, normed = layer.self_attn, layer.self_attn_layer_norm(states)
    query, key, value = (
        projection(normed).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=keys, scale=attention.scaling)
    states = states + attention.out_proj(mixed.transpose(1, 2).flatten(2))
    return states + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(states))))
