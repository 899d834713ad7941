"""Rows of the talker, which makes a frame of each in a step.

`Qwen3TTSTalkerForConditionalGeneration` of the SDK is the reference. A step is one frame of 80 ms for each row: the
code predictor completes the frame whose first code is known, and a pass of the talker finds the first code of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from asr_server.engine.memory import Capacity
from asr_server.engine.row import KeptTokens
from asr_server.engine.rows import RowInput
from asr_server.engine.torch import memory
from asr_server.engine.torch.arena_rows import ArenaRows
from asr_server.engine.torch.attention import TokenSpan
from asr_server.engine.torch.language_model import LanguageModel, Room
from asr_server.engine.torch.linear import MakeLinear, plain
from asr_server.engine.torch.passes import AttentionShape, Capture, Computed
from asr_server.features.speech_output.engines.qwen_tts.codec import StreamState
from asr_server.features.speech_output.engines.qwen_tts.prompt import SpeechPrompt
from asr_server.features.speech_output.engines.qwen_tts.sampling import Sampling, SamplingPair


class CodePredictor:
    """Takes the layers out of `model`, the SDK's module. `rows`: the most that share a frame."""

    def __init__(self, model: Any, sampling: Sampling, rows: int, make_linear: MakeLinear = plain) -> None:
        self._sampling = sampling
        self._project = model.small_to_mtp_projection
        self._heads = [head.weight for head in model.lm_head]
        # (codebooks, codes, d), of the talker's width.
        self._embeddings = [embedding.weight for embedding in model.model.codec_embedding]
        config = copy(model.model.config)
        config.max_position_embeddings = len(self._heads) + 1
        rotary = model.model.rotary_emb
        text = SimpleNamespace(
            config=config,
            layers=model.model.layers,
            norm=model.model.norm,
            embed_tokens=SimpleNamespace(weight=self._heads[0]),
            rotary_emb=lambda weight, positions: rotary(weight, positions[0]),
        )
        self.layers = LanguageModel(text, make_linear)
        shape = AttentionShape.of(config)
        size = (shape.layers, 2, rows, config.max_position_embeddings, shape.kv_heads, shape.dim)
        self._held = torch.zeros(size, device=self.layers.device, dtype=self.layers.dtype)

    def __call__(self, hidden: torch.Tensor, first: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
        """Codes (n, codebooks - 1) of frames that begin with codes of embeddings `first` (n, d), by the talker's states
        (n, d) and chances (n, codebooks - 1)."""
        rows, codes = len(hidden), list[torch.Tensor]()
        embeds, position = torch.cat([hidden, first]), 1
        for number, head in enumerate(self._heads):
            states = self.layers(self._project(embeds), _Frame(self._held, rows, position))[-rows:]
            codes.append(self._sampling.draw(F.linear(states, head).float(), chances[:, number]))
            embeds, position = F.embedding(codes[-1], self._embeddings[number]), position + 1
        return torch.stack(codes, dim=1)

    def completed(
        self, hidden: torch.Tensor, first: torch.Tensor, chances: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes, and the sum of their embeddings."""
        codes = self(hidden, first, chances)
        return codes, self.embeds(codes)

    def embeds(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the sum (n, d) of the embeddings of codes (n, codebooks - 1)."""
        parts = [F.embedding(codes[:, number], weight) for number, weight in enumerate(self._embeddings)]
        return torch.stack(parts).sum(0)


class _Frame:
    """The rows' tokens at `position` of a frame, at its first pass also those before. Implements `Attention` of the
    language model. `held`: keys and values (layers, 2, most rows, positions, kv_heads, dim)."""

    def __init__(self, held: torch.Tensor, rows: int, position: int) -> None:
        self._held, self._rows, self._position = held, rows, position
        first = 0 if position == 1 else position
        at = torch.arange(first, position + 1, device=held.device)[:, None].expand(-1, rows)
        self.positions = at.flatten()
        self._places = (at + torch.arange(rows, device=held.device) * held.shape[3]).flatten()

    def room(self, layer: int) -> Room:
        """See `Attention`."""
        keys, values = self._held[layer].flatten(1, 2)
        return Room(keys, values, self._places)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """See `Attention`."""
        rows = self._rows
        keys, values = self._held[layer, :, :rows, : self._position + 1].transpose(2, 3)
        # The heads that share keys are further queries: see `Masked`.
        queries = q[-rows:].unflatten(1, (keys.shape[1], -1))
        out = F.scaled_dot_product_attention(queries, keys, values).flatten(1)
        if len(q) == rows:
            return out
        # The token before sees itself alone.
        alone = values[:, :, :1].expand(-1, -1, queries.shape[2], -1).flatten(1)
        return torch.cat([alone, out])


# As in the SDK: no sentence ends before its second frame, and the end is the only code after the codebook that is used.
_LEAST_FRAMES = 2
_SPECIAL_CODES = 1024


# The first samples go out early; then few passes of the codec matter more.
_FIRST_FRAMES, _NEXT_FRAMES = 4, 8


@dataclass(slots=True, eq=False, kw_only=True)
class SpokenRow:
    """One sentence on its way. What follows `urgent` is set by the talker, and what follows `sent` by the codec."""

    key: int
    budget: int  # the most frames
    prompt: SpeechPrompt
    generator: torch.Generator  # its source of chance, on the host
    stream: StreamState = field(default_factory=StreamState)  # of the codec
    urgent: bool = False  # its prompt is run before those of others
    length: int = 0  # tokens in the arena
    input: RowInput | None = None  # its prompt until that is run
    hidden: torch.Tensor | None = None  # (d,), the state that `code` follows from
    code: int = 0  # the first code of the next frame
    frames: list[list[int]] = field(default_factory=list)  # all codes of each
    chances: list[float] | None = None  # of the next pass; kept until it has succeeded
    reserved: int = 0  # tokens that it may come to
    places: range = range(0)  # in the arena
    had: torch.Tensor | None = None  # (codes,), True for the first codes that it has had
    ended: bool = False  # the model ended the sentence
    overflowed: bool = False  # its numbers left the range of their format
    sent: int = 0  # frames that were decoded
    samples: NDArray[np.float32] | None = None  # of the last frames that were decoded

    @property
    def finished(self) -> bool:
        """True if no more steps are wanted."""
        return self.ended or self.overflowed or len(self.frames) >= self.budget

    @property
    def due(self) -> int:
        """Return how many frames the codec should decode now."""
        waiting = len(self.frames) - self.sent
        enough = _NEXT_FRAMES if self.sent else _FIRST_FRAMES
        return waiting if waiting >= enough or self.finished else 0


class Talker(ArenaRows[SpokenRow]):
    """Takes the layers out of `model`, the SDK's module. `pad` (1, d): the text that is added to frames after the end
    of the text."""

    def __init__(self, model: Any, sampling: SamplingPair, capacity: Capacity, make_linear: MakeLinear = plain) -> None:
        rotary = model.model.rotary_emb
        text = SimpleNamespace(
            config=model.model.config,
            layers=model.model.layers,
            norm=model.model.norm,
            embed_tokens=model.model.codec_embedding,
            # The three axes of its positions are equal.
            rotary_emb=lambda weight, positions: tuple(part[0] for part in rotary(weight, positions)),
        )
        super().__init__(LanguageModel(text, make_linear), capacity)
        self.predictor = CodePredictor(model.code_predictor, sampling.others, capacity.rows, make_linear)
        self._head: torch.Tensor = model.codec_head.weight
        self._sampling = sampling.first
        self._codebooks = int(model.config.num_code_groups)
        self._end_id = int(model.config.codec_eos_token_id)
        banned = torch.arange(len(self._head), device=self.model.device) >= len(self._head) - _SPECIAL_CODES
        banned[self._end_id] = False
        self._banned = banned
        self.pad = torch.zeros(1, self._head.shape[1], device=self.model.device, dtype=self.model.dtype)
        self._graphs: FrameGraphs | None = None

    def record(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record the code predictor's passes."""
        chances = torch.zeros(1, self._codebooks - 1, device=self.model.device)
        inputs = (self.pad, self.pad, chances)
        self._graphs = FrameGraphs(self.predictor.completed, inputs, self._capacity.rows, capture, on_each)
        return len(self._graphs)

    def frame_embeds(self, frames: torch.Tensor) -> torch.Tensor:
        """Frames (n, codebooks) to the sums of their embeddings (n, d)."""
        return self.model.embed(frames[:, 0]) + self.predictor.embeds(frames[:, 1:])

    def seat(self, row: SpokenRow, given: RowInput, cached: KeptTokens | None = None) -> None:
        """Give a sentence its places, as `ArenaRows.seat` does."""
        row.reserved = given.left + row.budget
        super().seat(row, given, cached)
        row.had = torch.zeros(len(self._head), dtype=torch.bool, device=self.model.device)

    def _begin(self, rows: Sequence[SpokenRow], states: Sequence[torch.Tensor], ahead: bool) -> Callable[[], None]:
        last = torch.stack([own[-1] for own in states])
        return partial(self._note, rows, last, self._first_codes(rows, last, self._chances(rows)[:, -1]).tolist())

    def step(self, *rows: SpokenRow, ahead: bool = False) -> None:
        """Complete a frame of each row, and find the first code of the next; never ahead."""
        rows = rows or tuple(self.decoding)
        spans = [TokenSpan(row.places.start, row.length, 1) for row in rows]
        aim, chances = self._pass(spans, [row.code for row in rows]), self._chances(rows)
        first = self.model.embed(aim.ids)
        states = torch.stack([row.hidden for row in rows if row.hidden is not None])
        complete = self._graphs.run if self._graphs is not None else self.predictor.completed
        codes, others = complete(states, first, chances[:, :-1])
        hidden = self.model(first + others + torch.cat([self._text(row) for row in rows]), aim)
        following = self._first_codes(rows, hidden, chances[:, -1])
        found = torch.cat([codes, following[:, None]], dim=1).tolist()
        for row, (*behind, _) in zip(rows, found, strict=True):
            row.frames.append([row.code, *behind])
            row.length += 1
        self._note(rows, hidden, [codes[-1] for codes in found])

    def _text(self, row: SpokenRow) -> torch.Tensor:
        """Return what is added to the row's frame, (1, d)."""
        number, trailing = len(row.frames), row.prompt.trailing
        return trailing[number : number + 1] if number < len(trailing) else self.pad

    def _first_codes(self, rows: Sequence[SpokenRow], hidden: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
        """Return the codes (n,) that follow; -1 where there are numbers out of range."""
        logits = F.linear(hidden, self._head).float()
        valid = logits.isfinite().all(-1)
        scores = self._sampling.penalized(logits, torch.stack([row.had for row in rows if row.had is not None]))
        scores = scores.masked_fill(self._banned, -torch.inf)
        # A row that has its first code at hand has none of its frames; after the next step it has one.
        early = torch.tensor([row.hidden is None or len(row.frames) + 1 < _LEAST_FRAMES for row in rows])
        scores[:, self._end_id].masked_fill_(memory.upload(early, scores.device), -torch.inf)
        codes = self._sampling.draw(torch.where(valid[:, None], scores, torch.zeros_like(scores)), chances)
        return torch.where(valid, codes, -1)

    def _chances(self, rows: Sequence[SpokenRow]) -> torch.Tensor:
        """Numbers in [0, 1) for all codes of a pass (n, codebooks), kept until it has succeeded."""
        for row in rows:
            if row.chances is None:
                row.chances = torch.rand(self._codebooks, generator=row.generator).tolist()
        return memory.upload(torch.tensor([row.chances for row in rows]), self.model.device)

    def _note(self, rows: Sequence[SpokenRow], hidden: torch.Tensor, codes: Sequence[int]) -> None:
        for row, state, code in zip(rows, hidden, codes, strict=True):
            row.hidden, row.code, row.chances = state, code, None
            row.ended, row.overflowed = code == self._end_id, code < 0
            if row.had is not None and code >= 0:
                row.had[code] = True


class FrameGraphs:
    """The code predictor's passes recorded once: the rest of a frame is then one call of the driver, not a thousand.

    A graph is `compute` of tensors like `inputs` (n, size), for powers of two of up to `rows` rows. Rows are padded.
    """

    def __init__(
        self,
        compute: Callable[..., Computed],
        inputs: Sequence[torch.Tensor],
        rows: int,
        capture: Capture,
        on_each: Callable[[], None],
    ) -> None:
        self._recorded: dict[int, tuple[list[torch.Tensor], Callable[[], None], Computed]] = {}
        # The largest first: the others find room in its memory.
        for count in sorted({min(1 << n, rows) for n in range(rows.bit_length() + 1)}, reverse=True):
            on_each()
            given = [part.new_zeros(count, part.shape[-1]) for part in inputs]
            self._recorded[count] = given, *capture(partial(compute, *given))

    def __len__(self) -> int:
        return len(self._recorded)

    def run(self, *inputs: torch.Tensor) -> Computed:
        """Return what `compute` gives for the rows of `inputs`; the next run overwrites it."""
        count = len(inputs[0])
        given, replay, computed = self._recorded[min(size for size in self._recorded if size >= count)]
        for kept, new in zip(given, inputs, strict=True):
            kept[:count].copy_(new)
        replay()
        first, second = computed
        return first[:count], second[:count]
