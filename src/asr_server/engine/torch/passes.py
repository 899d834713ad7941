"""Passes over rows: where their keys and values are, how tokens are laid out, and passes that are recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asr_server.engine.torch import memory
from asr_server.engine.torch.attention import (
    EachRow,
    Masked,
    Numbers,
    TokenSpan,
    VariableLength,
)
from asr_server.engine.torch.language_model import Room


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes of a language model's attention."""

    layers: int
    heads: int  # heads of queries
    kv_heads: int  # heads of keys and of values
    dim: int  # the size of a head

    @property
    def groups(self) -> int:
        return self.heads // self.kv_heads

    def token_bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.kv_heads * self.dim * dtype.itemsize

    @classmethod
    def of(cls, config: Any) -> AttentionShape:
        """Read the shape from a language model's configuration."""
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(config.num_hidden_layers, heads, config.num_key_value_heads, int(dim))


class Arena:
    """Room for the keys and values of `tokens` tokens in one buffer. A row has a range of places.

    The last place never belongs to a row: padding is written there. Places that nobody has written are 0.
    """

    def __init__(self, shape: AttentionShape, tokens: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        self.tokens = tokens
        self._held = _zeros((shape.layers, 2, tokens, shape.kv_heads, shape.dim), device, dtype)
        # Why `VariableLength` is not used; empty if it is.
        self.problem = variable_length_problem(shape, device, dtype)

    @property
    def device(self) -> torch.device:
        return self._held.device

    @property
    def variable(self) -> bool:
        return not self.problem

    @property
    def nbytes(self) -> int:
        return self._held.nbytes

    @property
    def dtype(self) -> torch.dtype:
        return self._held.dtype

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, (tokens, kv_heads, dim) each, as views."""
        held = self._held[number]
        return held[0], held[1]

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy keys and values from some places to others, which may overlap."""
        # A layer at a time, to save memory. It is allocated before anything is written: nothing fails after that.
        between = torch.empty_like(self._held[0, :, :tokens])
        for layer in self._held:
            between.copy_(layer[:, source : source + tokens])
            layer[:, target : target + tokens] = between

    def clear(self, places: range) -> None:
        """Zero places. From rows that get them next, a mask hides finite numbers, but not NaN or infinity."""
        self._held[:, :, places.start : places.stop] = 0

    def copy(self, begin: int, tokens: int) -> torch.Tensor:
        """Return the keys and values at some places, (layers, 2, tokens, kv_heads, dim)."""
        return self._held[:, :, begin : begin + tokens].clone()

    def put(self, begin: int, kept: torch.Tensor) -> None:
        self._held[:, :, begin : begin + kept.shape[2]] = kept


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros. On a CPU the memory is not touched: only long prompts need most of it."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)


@dataclass(frozen=True, slots=True)
class PassShape:
    """The sizes of a recorded pass, with padding."""

    rows: int
    tokens: int  # of all rows
    query: int  # the most tokens of a row
    width: int  # the most places that a row sees
    stride: int = 0  # see `Masked`: the rows are at the first multiples of it


class Layout:
    """Tokens of rows, packed without gaps, in the host's memory: only attention sees rows.

    `ids`: of the tokens, unless they are given as embeddings. `shape`: the sizes that they are padded to, for a
    recorded pass. Padding is written to the arena's last place and sees the numbers there. Its results are ignored.

    `numbers` (n,) int64: the parts of `Numbers` in their order, with these `lengths`.
    """

    def __init__(
        self, arena: Arena, spans: Sequence[TokenSpan], ids: Sequence[int] = (), shape: PassShape | None = None
    ) -> None:
        self.shape, self.spans = shape, spans
        begins, starts = np.array([span.begin for span in spans]), np.array([span.start for span in spans])
        counts = np.array([span.count for span in spans])
        used, row_of = starts + counts, np.repeat(np.arange(len(spans)), counts)
        count = len(row_of)
        within = np.arange(count) - (counts.cumsum() - counts)[row_of]
        positions = within + starts[row_of]
        places, tokens = begins[row_of] + positions, np.array(ids, np.int64)
        gather = scatter = _NONE
        if shape is not None:
            rows, padding, spare = shape.rows - len(spans), shape.tokens - count, arena.tokens - 1
            if not arena.variable:
                row_at = begins // shape.stride if shape.stride else np.arange(len(spans))
                scatter = _padded(row_at[row_of] * shape.query + within, padding, 0)
                gather = np.zeros(shape.rows * shape.query, np.int64)
                gather[scatter[:count]] = np.arange(count)
            # All padding is in the last row. If each row has one token, it is in rows of its own.
            counts = _padded(counts, rows, int(shape.query == 1))
            if shape.query > 1 and arena.variable:
                counts[-1] = padding
            begins, used = _padded(begins, rows, spare), _padded(used, rows, 1)
            positions, places = _padded(positions, padding, 0), _padded(places, padding, spare)
            tokens = _padded(tokens, padding, 0) if len(ids) else tokens
        ends = np.concatenate([[0], counts.cumsum()])
        # In the order of `Numbers`.
        parts = (tokens, positions, places, begins, used, ends, gather, scatter)
        self.lengths = [len(part) for part in parts]
        self.numbers = torch.from_numpy(np.concatenate(parts))


_NONE = np.zeros(0, np.int64)


def _padded(part: NDArray[np.int64], count: int, value: int) -> NDArray[np.int64]:
    return np.concatenate([part, np.full(count, value)]) if count else part


class Pass:
    """A layout on the device, with the attention of its tokens over the arena. Implements the model's `Attention`."""

    def __init__(self, arena: Arena, layout: Layout, numbers: torch.Tensor | None = None) -> None:
        """`numbers`: the layout's numbers, if they are already on the device."""
        if numbers is None:
            # One transfer for all: on a GPU each small one costs as much as a layer.
            numbers = memory.upload(layout.numbers, arena.device)
        shape = layout.shape
        self._arena = arena
        found = Numbers(*numbers.split(layout.lengths))
        self.ids, self.positions, self.places = found.ids, found.positions, found.places
        self._attention: EachRow | Masked | VariableLength
        if arena.variable:
            query = shape.query if shape is not None else max(span.count for span in layout.spans)
            width = shape.width if shape is not None else max(span.end for span in layout.spans)
            self._attention = VariableLength(found, query, width)
        elif shape is not None:
            groups = arena.shape.groups
            sizes = shape.query, shape.width, shape.stride
            self._attention = Masked(found, *sizes, groups=groups, dtype=arena.dtype)
        else:
            self._attention = EachRow(layout.spans)

    def room(self, layer: int) -> Room:
        return Room(*self._arena.layer(layer), self.places)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        return self._attention(q, *self._arena.layer(layer))


# Lengths are padded to a power of two or one and a half times one, and to at least this, so that there are few shapes.
_SHORTEST = 256


def rounded(tokens: int) -> int:
    """Return the length that `tokens` are padded to: 256, 384, 512, 768, 1024, 1536, 2048, 3072, ..."""
    if tokens <= _SHORTEST:
        return _SHORTEST
    power = 1 << (tokens - 1).bit_length()
    shorter = power * 3 // 4
    return shorter if tokens <= shorter else power


# Padded steps are recorded for rows up to this length, five minutes of audio. Longer rows are rare, and recording them
# would delay each load.
WIDEST = 4096
# If rows of any lengths attend in one call, their length only decides how a kernel divides the work. Steps up to these
# lengths are recorded, and steps of any length.
_LONGEST = (512, 1024, 4096)
# The most tokens of a row in a step: its last one and the most that a draft proposes.
_PROPOSED = 13
# If rows of any lengths attend in one call: the tokens of a step with proposals, for each row; the most rows whose
# prompts are recorded together; and the tokens of these prompts, of which at most a fifth is padding from 256 on.
_EACH, _ROWS = (2, 4, 7, _PROPOSED), 32
PROMPT_TOKENS = (64, 128, 192, *(n * step for step in (64, 128, 256, 512) for n in range(4, 8)), 4096)
# Otherwise: the tokens that each row is padded to, in steps and in prompts; the rows of prompts; and the longest row of
# prompts, half a minute. More tokens keep a GPU busy without recording.
_QUERIES, _PROMPT_QUERIES, _PROMPT_ROWS, WIDEST_PROMPT = (4, _PROPOSED), (64, 256, 384, 512), (1, 2, 4), 1024
# The most places that a recorded step copies in each layer. It needs room for them: 128 MiB in the released models.
_MOST_COPIED = 2**15


class PassShapes:
    """The shapes of the recorded passes over an arena, with at most `rows` rows.

    `share`: the places that are planned for each row.
    """

    def __init__(self, arena: Arena, rows: int, share: int) -> None:
        self._variable, self._tokens, self._rows, self._share = arena.variable, arena.tokens, rows, share
        self._lengths = sorted({min(length, arena.tokens) for length in (*_LONGEST, arena.tokens)})

    def steps(self) -> list[PassShape]:
        """Return the shapes of steps: one token a row, and with proposals."""
        batches = {min(1 << n, self._rows) for n in range(self._rows.bit_length() + 1)}
        widths = self._lengths if self._variable else self._widths(WIDEST)
        single = [PassShape(batch, batch, 1, width) for batch in batches for width in widths]
        if self._variable:
            return single + [
                PassShape(batch + 1, batch * each, _PROPOSED, self._tokens) for batch in batches for each in _EACH
            ]
        planned = [
            PassShape(batch, batch * query, query, width, self._share)
            for query in (1, *_QUERIES)
            for batch in batches
            for width in {min(width, self._share) for width in widths}
            if query == 1 or width <= WIDEST_PROMPT
        ]
        return planned + [shape for shape in single if shape.rows * shape.width <= _MOST_COPIED]

    def step(self, spans: Sequence[TokenSpan]) -> PassShape | None:
        """Return the shape of a step; None if such a step is never recorded."""
        rows = min(1 << (len(spans) - 1).bit_length(), self._rows)
        longest, width = _most(spans)
        if longest > _PROPOSED:
            return None
        if self._variable and longest > 1:
            tokens = sum(span.count for span in spans)
            each = next(each for each in _EACH if rows * each >= tokens)
            return PassShape(rows + 1, rows * each, _PROPOSED, self._tokens)
        if self._variable:
            seen = max(span.end for span in spans)
            return PassShape(rows, rows, 1, next(length for length in self._lengths if length >= seen))
        share, stride = self._share, 0
        if all(span.begin % share == 0 and span.end <= share for span in spans):
            last = max([span.begin for span in spans]) // share
            rows, width, stride = min(1 << last.bit_length(), self._rows), min(width, share), share
        query = next(query for query in (1, *_QUERIES) if query >= longest)
        return PassShape(rows, rows * query, query, width, stride)

    def prompts(self) -> list[PassShape]:
        """Return the shapes of prompts."""
        if self._variable:
            return [PassShape(_ROWS + 1, tokens, tokens, self._tokens) for tokens in PROMPT_TOKENS]
        return [
            PassShape(rows, rows * query, query, width)
            for query in _PROMPT_QUERIES
            for rows in _PROMPT_ROWS
            for width in self._widths(WIDEST_PROMPT)
            if rows <= self._rows and query <= width
        ]

    def prompt(self, spans: Sequence[TokenSpan]) -> PassShape | None:
        """Return the shape of a pass over prompts; None if such a pass is never recorded."""
        if self._variable:
            tokens = next((n for n in PROMPT_TOKENS if n >= sum(span.count for span in spans)), 0)
            fits = tokens > 0 and len(spans) <= _ROWS
            return PassShape(_ROWS + 1, tokens, tokens, self._tokens) if fits else None
        longest, width = _most(spans)
        query = next((query for query in _PROMPT_QUERIES if query >= longest), 0)
        rows = 1 << (len(spans) - 1).bit_length()
        return PassShape(rows, rows * query, query, width) if query else None

    def _widths(self, most: int) -> set[int]:
        return {rounded(tokens) for tokens in range(1, min(self._tokens, most) + 1)}


def _most(spans: Sequence[TokenSpan]) -> tuple[int, int]:
    """Return the most tokens that a row runs, and the padded length of the longest row."""
    return max([span.count for span in spans]), rounded(max([span.end for span in spans]))


# What a pass computes, the last hidden states of its tokens first.
Computed = tuple[torch.Tensor, ...]
# Takes a function of tensors whose memory stays the same. Returns a function that runs the same operations on the
# tensors' current numbers, and the tensors that it writes.
Capture = Callable[[Callable[[], Computed]], tuple[Callable[[], None], Computed]]


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A recorded pass."""

    numbers: torch.Tensor  # a layout's, which `replay` reads
    replay: Callable[[], None]
    computed: Computed  # what `replay` writes


class PassGraphs:
    """Recorded passes, by their shapes. `shape_of` returns the shape of a pass.

    `compute` gets the pass and, if `embeds` (most tokens, d) is given, the embeddings of its tokens in that tensor.
    """

    def __init__(
        self,
        arena: Arena,
        compute: Callable[[Pass, torch.Tensor | None], Computed],
        shapes: Sequence[PassShape],
        shape_of: Callable[[Sequence[TokenSpan]], PassShape | None],
        capture: Capture,
        on_each: Callable[[], None],
        *,
        embeds: torch.Tensor | None = None,
    ) -> None:
        self._arena, self._embeds, self._shape_of = arena, embeds, shape_of
        self._recorded: dict[PassShape, _Recorded] = {}
        # The largest first: the others reuse its memory.
        for shape in sorted(shapes, key=lambda shape: (shape.tokens, shape.width), reverse=True):
            on_each()
            self._recorded[shape] = self._record(shape, compute, capture)

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
        """Return the results of the pass, with padding after its tokens; None if it was not recorded. The next pass
        overwrites them.

        `fill` gets the ids (n,) on the device before the pass, and writes the ids that the host does not know yet.
        """
        shape = self._shape_of(spans)
        recorded = self._recorded.get(shape) if shape is not None else None
        if recorded is None:
            return None
        layout = Layout(self._arena, spans, ids, shape)
        # A copy from memory that is not pinned would wait for all queued work.
        recorded.numbers.copy_(memory.pinned(layout.numbers, self._arena.device), non_blocking=True)
        fill(recorded.numbers[: layout.lengths[0]])
        if embeds is not None and self._embeds is not None:
            self._embeds[: len(embeds)] = embeds
        recorded.replay()
        return recorded.computed

    def _record(
        self, shape: PassShape, compute: Callable[[Pass, torch.Tensor | None], Computed], capture: Capture
    ) -> _Recorded:
        embeds = self._embeds[: shape.tokens] if self._embeds is not None else None
        # A single token; the rest is padding.
        layout = Layout(self._arena, [TokenSpan(0, 0, 1)], [0] if embeds is None else (), shape)
        numbers = layout.numbers.to(self._arena.device)
        return _Recorded(numbers, *capture(lambda: compute(Pass(self._arena, layout, numbers), embeds)))


class CudaCapture:
    """Records on a GPU. All graphs share their memory: no two run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Computed]) -> tuple[Callable[[], None], Computed]:
        """See `Capture`."""
        graph = torch.cuda.CUDAGraph()
        run()  # a kernel's set-up at its first use cannot be recorded
        # A capture records the work of the current GPU, by default the first one. Work of another GPU is not recorded.
        # If the end of a capture fails, torch leaves its stream the current one, and later passes would run in it.
        with (
            torch.cuda.device(self._device),
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=self._pool),
        ):
            computed = run()
        return graph.replay, computed


# FlashAttention-2 has kernels for GPUs of this compute capability and later.
_FLASH_FROM = (8, 0)
# The most that results may differ, for values of standard deviation 1: each kernel rounds the weights of values to 16
# bits in an order of its own.
_TOLERANCE = 0.05


def variable_length_problem(shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> str:
    """Return why `VariableLength` cannot be used with these sizes; empty if a trial on the device succeeds, directly
    and recorded."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "it needs an NVIDIA GPU"
    if torch.cuda.get_device_capability(device) < _FLASH_FROM:
        return f"it needs compute capability {'.'.join(map(str, _FLASH_FROM))}"
    if dtype not in (torch.float16, torch.bfloat16):
        return "it needs a format of 16 bits"
    try:
        return _trial(shape, device, dtype)
    # Each version of torch, and each driver, refuses in its own way; the model can be loaded without it.
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _trial(shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> str:
    """Compare with `EachRow`, for rows with one token, and for rows with several or, like padding, no tokens; in any
    order and with gaps between them."""
    single = [TokenSpan(700, 299, 1), TokenSpan(0, 4, 1)]
    for rows in (single, [TokenSpan(700, 297, 3), TokenSpan(1023, 1, 0), TokenSpan(300, 0, 1), TokenSpan(0, 0, 90)]):
        differs = _difference(rows, shape, device, dtype)
        if not differs <= _TOLERANCE:
            return f"its results differ by {differs:.2g} from those of torch's other kernels"
    return ""


def _difference(rows: Sequence[TokenSpan], shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> float:
    """Return the largest difference of a recorded `VariableLength` from `EachRow`, on random numbers."""
    generator, held = torch.Generator().manual_seed(0), (1024, shape.kv_heads, shape.dim)
    sizes = (sum(row.count for row in rows), shape.heads, shape.dim), held, held
    q, keys, values = (torch.randn(size, generator=generator).to(device, dtype) for size in sizes)
    ends = torch.tensor([0, *accumulate(row.count for row in rows)])
    begins, used = torch.tensor([row.begin for row in rows]), torch.tensor([row.end for row in rows])
    nothing = torch.zeros(0, dtype=torch.long)
    numbers = Numbers(*(x.to(device) for x in (*[nothing] * 3, begins, used, ends, *[nothing] * 2)))
    attend = VariableLength(numbers, max(row.count for row in rows), 300)
    replay, (found,) = CudaCapture(device)(lambda: (attend(q, keys, values),))
    found.fill_(torch.nan)
    replay()
    return float((found - EachRow(rows)(q, keys, values)).abs().max())
