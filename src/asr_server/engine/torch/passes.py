"""The layout of one forward pass: its tokens, where their keys and values go, and what each of them sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from asr_server.engine.torch import memory

# Lengths of slots, and of what a pass looks at, are one and a half or one times a power of two, and at least this: few
# different shapes for kernels to be chosen for.
_SHORTEST = 256


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes of a language model's attention."""

    layers: int
    heads: int  # heads of queries
    kv_heads: int  # heads of keys and of values
    dim: int  # the size of a head

    @property
    def groups(self) -> int:
        """Heads of queries for each head of keys."""
        return self.heads // self.kv_heads

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values for one token."""
        return 2 * self.layers * self.kv_heads * self.dim * dtype.itemsize

    @classmethod
    def of(cls, config: Any) -> AttentionShape:
        """Read the shape from a language model's configuration."""
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(config.num_hidden_layers, heads, config.num_key_value_heads, int(dim))


class Arena:
    """Room for `tokens` tokens, divided into `slots` of `columns`.

    The last column of a slot is never a row's: passes that are padded to more rows write there.
    """

    def __init__(self, shape: AttentionShape, tokens: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        self.tokens = tokens
        self._flat = _zeros((shape.layers, 2, tokens * shape.kv_heads * shape.dim), device, dtype)
        self.slots = self.columns = 0
        self._divided = self._view(0, 0)

    @property
    def device(self) -> torch.device:
        """Return where the buffer is."""
        return self._flat.device

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer; on a CPU the system provides them when they are first written."""
        return self._flat.nbytes

    @property
    def dtype(self) -> torch.dtype:
        """Return the format of keys and values."""
        return self._flat.dtype

    def divide(self, slots: int, columns: int, held: Sequence[int]) -> None:
        """Make it `slots` slots of `columns`; the first of them keep their first `held` tokens, which must fit."""
        if (slots, columns) == (self.slots, self.columns):
            return
        divided = self._view(slots, columns)
        for layer, old in zip(divided, self._divided, strict=True):
            # A layer at a time, all of it read before it is written: old and new slots overlap.
            kept = [old[:, slot, :, :tokens].clone() for slot, tokens in enumerate(held)]
            # A NaN must not stay where only a mask hides it.
            for slot, tokens in enumerate(held):
                old[:, slot, :, :tokens] = 0
            for slot, (tokens, part) in enumerate(zip(held, kept, strict=True)):
                layer[:, slot, :, :tokens] = part
        self.slots, self.columns, self._divided = slots, columns, divided

    def _view(self, slots: int, columns: int) -> torch.Tensor:
        heads, dim = self.shape.kv_heads, self.shape.dim
        return self._flat[:, :, : slots * heads * columns * dim].view(self.shape.layers, 2, slots, heads, columns, dim)

    def layer(self, number: int) -> torch.Tensor:
        """Keys and values of one layer, (2, slots, kv_heads, columns, dim), as a view."""
        return self._divided[number]

    def clear(self, slot: int, tokens: int) -> None:
        """Zero the first `tokens` of a slot, and the column for padding: a mask hides any number, but not what is none.

        Not all of the slot: on a CPU its memory is taken by being written, and slots may be long.
        """
        self._divided[:, :, slot, :, :tokens] = 0
        self._divided[:, :, slot, :, -1] = 0

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` of one slot over another."""
        self._divided[:, :, target, :, :tokens] = self._divided[:, :, source, :, :tokens]

    def swap(self, one: int, other: int, tokens: int) -> None:
        """Exchange the first `tokens` of two slots."""
        kept = self.copy(one, tokens)
        self.move(other, one, tokens)
        self.put(other, kept)

    def copy(self, slot: int, tokens: int) -> torch.Tensor:
        """Return the first `tokens` of a slot, (layers, 2, kv_heads, tokens, dim)."""
        return self._divided[:, :, slot, :, :tokens].clone()

    def put(self, slot: int, kept: torch.Tensor) -> None:
        """Write keys and values that `copy` returned to the start of a slot."""
        self._divided[:, :, slot, :, : kept.shape[3]] = kept


def rounded(tokens: int) -> int:
    """Return the length that `tokens` are padded to: 256, 384, 512, 768, 1024, 1536, 2048, 3072, ..."""
    if tokens <= _SHORTEST:
        return _SHORTEST
    power = 1 << (tokens - 1).bit_length()
    shorter = power * 3 // 4
    return shorter if tokens <= shorter else power


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros. On a CPU the memory is not touched: most of it is needed by long prompts only."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)


# Queries of a row are padded to one of these: one token, a short or a whole proposal of a draft; more as lengths are.
_QUERIES = (1, 4, 13, 64)


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens of one row that are run in a pass."""

    slot: int
    start: int  # position of the first token
    count: int  # tokens from there on


@dataclass(frozen=True, slots=True)
class PassShape:
    """The sizes of a pass's attention, of which there are few."""

    batch: int  # rows with padding
    query: int  # tokens of each row with padding
    width: int  # columns that they look at

    @property
    def tokens(self) -> int:
        """Return the tokens of all rows with padding."""
        return self.batch * self.query

    @classmethod
    def of(cls, arena: Arena, spans: Sequence[TokenSpan]) -> PassShape:
        """Return the shape of a pass of these tokens."""
        batch = min(_power_of_two(len(spans)), arena.slots - spans[0].slot)
        width = min(rounded(max([span.start + span.count for span in spans])), arena.columns)
        return cls(batch, padded_query(max([span.count for span in spans])), width)


def padded_query(count: int) -> int:
    """Return the number of queries that `count` tokens of a row are padded to."""
    return next((query for query in _QUERIES if query >= count), 0) or rounded(count)


class Layout:
    """Tokens of rows in neighbouring slots, packed one after the other, in the host's memory.

    They are packed, so that only attention pays for rows of different lengths. `ids`: those of the tokens, if they are
    not given as embeddings. Rows and queries are padded to few different shapes. Padding looks at something that is
    there, and nobody looks at what comes of it. `padded`: there are as many tokens as the shape has, as in a recorded
    pass, and not as many as the rows have. `by_rows`: the slots are numbers too, so that a recorded pass takes any.

    `numbers` (n,) int64, in parts of `lengths`: ids, positions, columns, slots, the token at each padded place, the
    place of each token, the slots of the rows.
    """

    def __init__(
        self,
        arena: Arena,
        spans: Sequence[TokenSpan],
        ids: Sequence[int] = (),
        *,
        padded: bool = False,
        by_rows: bool = False,
    ) -> None:
        self.first, self.shape = spans[0].slot, PassShape.of(arena, spans)
        starts, counts = np.array([span.start for span in spans]), np.array([span.count for span in spans])
        row_of = np.repeat(np.arange(len(spans)), counts)
        tokens = np.arange(len(row_of))
        within = tokens - np.repeat(counts.cumsum() - counts, counts)
        # Single tokens are always padded here, and not in attention: a step then has one of few numbers of tokens.
        single = self.shape.query == 1
        padding = self.shape.tokens - len(tokens) if single or padded else 0

        def filled(part: NDArray[np.int64], value: int) -> NDArray[np.int64]:
            return np.concatenate([part, np.full(padding, value)]) if padding else part

        places = row_of * self.shape.query + within
        gather = np.zeros(0 if single else self.shape.tokens, np.int64)
        if not single:
            gather[places] = tokens
        parts = [
            filled(np.array(ids, np.int64), 0) if len(ids) else tokens[:0],
            filled(within + starts[row_of], 0),
            filled(within + starts[row_of], arena.columns - 1),
            filled(row_of + self.first, self.first),
            gather,
            tokens[:0] if single else filled(places, 0),
            np.minimum(np.arange(self.shape.batch) + self.first, arena.slots - 1) if by_rows else tokens[:0],
        ]
        self.lengths = [len(part) for part in parts]
        self.numbers = torch.from_numpy(np.concatenate(parts))


class Pass:
    """A layout on the device, and what its tokens do with the arena."""

    def __init__(self, arena: Arena, layout: Layout, numbers: torch.Tensor | None = None) -> None:
        """`numbers`: those of the layout, if they are on the device already."""
        if numbers is None:
            # One transfer for all: on a GPU each small one costs as much as a layer.
            numbers = memory.upload(layout.numbers, arena.device)
        self._arena, self._first = arena, layout.first
        self.batch, self.query, self.width = layout.shape.batch, layout.shape.query, layout.shape.width
        self.ids, self.positions, *self._at, self._gather, self._scatter, self._rows = numbers.split(layout.lengths)
        self._mask = self._visible(arena.dtype)

    def _visible(self, dtype: torch.dtype) -> torch.Tensor:
        """Return what is added to scores (batch, 1, query * groups, width): 0 where a query may look and -inf
        elsewhere."""
        positions = self.positions[self._gather] if self.query > 1 else self.positions
        hidden = torch.arange(self.width, device=positions.device) > positions[:, None]
        mask = (
            torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf).view(self.batch, 1, self.query, -1)
        )
        return mask.repeat_interleave(self._arena.shape.groups, 2) if self.query > 1 else mask

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Keep keys and values (n, kv_heads, dim), and attend with queries (n, heads, dim): (n, heads * dim).

        The heads that share keys are further queries, so that there are as many heads of queries as of keys: with more,
        kernels would copy the keys or refuse.
        """
        columns, slots = self._at
        held = self._arena.layer(layer)
        held[0, slots, :, columns] = k
        held[1, slots, :, columns] = v
        seen = held[:, :, :, : self.width]
        if len(self._rows):
            keys, values = seen.index_select(1, self._rows)  # copied: of few rows, that is little next to their layers
        else:
            keys, values = seen[:, self._first : self._first + self.batch]
        if self.query > 1:
            q = q[self._gather]
        q = q.view(self.batch, self.query, *k.shape[1:2], -1, k.shape[-1]).transpose(1, 2)
        out = F.scaled_dot_product_attention(q.flatten(2, 3), keys, values, attn_mask=self._mask)
        out = out.unflatten(2, (self.query, -1)).transpose(1, 2).flatten(2).flatten(0, 1)
        return out[self._scatter] if self.query > 1 else out


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


# Steps of rows up to this length are recorded, five minutes of audio: longer ones are rare, and delay every load.
# Prompts and drafts are those of spans and of utterances, half a minute.
_WIDEST, _WIDEST_PROMPT = 4096, 1024
# The most rows whose prompts are recorded together, and the padded queries: more tokens keep a GPU busy by themselves.
_PROMPT_ROWS, _PROMPT_QUERIES = (1, 2, 4), (64, 256, 384, 512)
# What a pass computes, the last hidden states of its tokens first.
Computed = tuple[torch.Tensor, ...]
# Takes a function of tensors that stay where they are. Returns another that runs the same operations on what these
# hold by then, and what it computes into.
Capture = Callable[[Callable[[], Computed]], tuple[Callable[[], None], Computed]]


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A recorded pass."""

    numbers: torch.Tensor  # a layout's, which `replay` reads
    replay: Callable[[], None]
    computed: Computed  # what `replay` writes


def step_shapes(arena: Arena) -> list[PassShape]:
    """Return the shapes of steps to record: of one token a row, and of proposals of drafts."""
    batches = {min(1 << n, arena.slots) for n in range(arena.slots.bit_length() + 1)}
    return [
        PassShape(batch, query, width)
        for query in _QUERIES[:3]
        for batch in batches
        for width in _longest(arena)
        if query == 1 or width <= _WIDEST_PROMPT
    ]


def prompt_shapes(arena: Arena) -> list[PassShape]:
    """Return the shapes of prompts to record."""
    return [
        PassShape(batch, query, width)
        for query in _PROMPT_QUERIES
        for batch in _PROMPT_ROWS
        for width, longest in _longest(arena).items()
        if batch <= arena.slots and query <= longest and width <= _WIDEST_PROMPT
    ]


def _longest(arena: Arena) -> dict[int, int]:
    """Return the longest rows of each width that passes have; one column of a slot is never a row's."""
    return {min(rounded(tokens), arena.columns): tokens for tokens in range(1, min(arena.columns, _WIDEST + 1))}


class PassGraphs:
    """Passes recorded by their shapes, over an arena as it is divided now.

    `compute` is given the pass, and the embeddings of its tokens if `embeds` (most tokens, d) has room for them: then
    these are prompts, of rows in any slots. Without, rows begin at the first slot.
    """

    def __init__(
        self,
        arena: Arena,
        compute: Callable[[Pass, torch.Tensor | None], Computed],
        shapes: Sequence[PassShape],
        capture: Capture,
        on_each: Callable[[], None],
        *,
        embeds: torch.Tensor | None = None,
    ) -> None:
        self._arena, self._embeds = arena, embeds
        self._division = arena.slots, arena.columns
        self._recorded: dict[PassShape, _Recorded] = {}
        longest = _longest(arena)
        # The largest first: the others find room in its memory.
        for shape in sorted(shapes, key=lambda shape: (shape.tokens, shape.width), reverse=True):
            on_each()
            spans = [TokenSpan(slot, longest[shape.width] - shape.query, shape.query) for slot in range(shape.batch)]
            self._recorded[shape] = self._record(spans, compute, capture)

    def __len__(self) -> int:
        return len(self._recorded)

    def run(
        self,
        spans: Sequence[TokenSpan],
        ids: Sequence[int] = (),
        embeds: torch.Tensor | None = None,
        *,
        fill: Callable[[torch.Tensor], object] = lambda ids: None,
    ) -> Computed | None:
        """Return what the pass computes, with padding behind its tokens, which the next one overwrites; None if it was
        not recorded.

        `fill` is given the ids (n,) on the device before the pass, and puts in those that the host does not know yet.
        """
        elsewhere = self._embeds is None and spans[0].slot > 0
        if elsewhere or (self._arena.slots, self._arena.columns) != self._division:
            return None
        layout = self._layout(spans, ids)
        recorded = self._recorded.get(layout.shape)
        if recorded is None:
            return None
        # A copy from memory that is not pinned would wait for what is queued.
        recorded.numbers.copy_(memory.pinned(layout.numbers, self._arena.device), non_blocking=True)
        fill(recorded.numbers[: layout.lengths[0]])
        if embeds is not None and self._embeds is not None:
            self._embeds[: len(embeds)] = embeds
            # A number that is none would reach the columns that padding is written to.
            self._embeds[len(embeds) : layout.shape.tokens] = 0
        recorded.replay()
        return recorded.computed

    def _record(
        self, spans: Sequence[TokenSpan], compute: Callable[[Pass, torch.Tensor | None], Computed], capture: Capture
    ) -> _Recorded:
        tokens = sum(span.count for span in spans)
        embeds = self._embeds[:tokens] if self._embeds is not None else None
        layout = self._layout(spans, [0] * tokens if embeds is None else ())
        numbers = layout.numbers.to(self._arena.device)
        return _Recorded(numbers, *capture(lambda: compute(Pass(self._arena, layout, numbers), embeds)))

    def _layout(self, spans: Sequence[TokenSpan], ids: Sequence[int]) -> Layout:
        return Layout(self._arena, spans, ids, padded=True, by_rows=self._embeds is not None)


class CudaCapture:
    """Records on a GPU. All graphs share their memory: no two run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Computed]) -> tuple[Callable[[], None], Computed]:
        """See `Capture`."""
        graph = torch.cuda.CUDAGraph()
        run()  # what a kernel sets up when it is first used cannot be recorded
        # Recorded is what the current GPU is given, and that is the first one. Of another nothing would be recorded.
        # Where the end of a capture fails, torch leaves its stream the current one: the passes would go on in it.
        with (
            torch.cuda.device(self._device),
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=self._pool),
        ):
            computed = run()
        return graph.replay, computed
