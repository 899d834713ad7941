"""A compiled language model: passes of packed tokens over pages of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from asr_server.engine.memory import NoRoom
from asr_server.engine.openvino import text_graph
from asr_server.engine.openvino.library import NumberFormats
from asr_server.engine.openvino.text_graph import ROWS, Matrix, TextWeights

# Tokens of a page, as the CPU kernels require.
PAGE = 32
# Logits of a row that are computed again from the head's own weights: see `CompiledText`.
_EXACT_LOGITS = 16

Floats = NDArray[np.float32]


def page_count(tokens: int) -> int:
    return -(-tokens // PAGE)


@dataclass(frozen=True, slots=True)
class PageSpan:
    """Tokens of one row that are run in a pass."""

    pages: list[int]  # of the row
    start: int  # position of the first token
    count: int  # tokens from there on


class NextLogits(NamedTuple):
    """The logits after some of the tokens of a pass; the next pass overwrites them."""

    logits: Floats  # (k, vocabulary)
    tokens: NDArray[np.int64]  # (k,) the likeliest token of each
    lse: Floats  # (k,) the logarithm of the sum of all exponentials


class Pages:
    """Keys and values of `tokens` tokens in pages of 32, of all layers.

    The system provides a page's memory when it is first written.
    """

    def __init__(self, shapes: dict[str, tuple[list[int], Any]], tokens: int) -> None:
        """`shapes`: the shape and the number format of a page, by the graph's input."""
        count = page_count(tokens)
        self._arrays = {name: np.zeros((count, _bytes(*one)), np.uint8) for name, one in shapes.items()}
        self._shapes = shapes
        self.free = list(range(count))

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    def tensors(self) -> dict[str, ov.Tensor]:
        return {
            name: ov.Tensor(array, [len(array), *shape], kind)
            for (name, (shape, kind)), array in zip(self._shapes.items(), self._arrays.values(), strict=True)
        }

    def take(self, count: int) -> list[int]:
        """Return `count` free pages, which are the caller's until it gives them back. Raises `NoRoom`."""
        if count > len(self.free):
            raise NoRoom
        # Take the pages that were given back last: their memory is there already, and unused pages need none.
        at = len(self.free) - count
        taken, self.free = self.free[at:], self.free[:at]
        return taken

    def give(self, pages: Sequence[int]) -> None:
        self.free += pages

    def clear(self, pages: Sequence[int]) -> None:
        """Zero pages that may hold NaN or infinity. The AVX2 kernels do not read beyond the end of a row. Others may
        multiply the numbers there by zero, which hides finite numbers only."""
        for array in self._arrays.values():
            array[pages] = 0

    def copy(self, pages: Sequence[int]) -> NDArray[np.uint8]:
        return np.concatenate([array[pages] for array in self._arrays.values()], axis=1)

    def put(self, pages: Sequence[int], kept: NDArray[np.uint8]) -> None:
        """Write what `copy` returned."""
        begins = [0, *accumulate(array.shape[1] for array in self._arrays.values())]
        for array, begin, end in zip(self._arrays.values(), begins, begins[1:], strict=False):
            array[pages] = kept[:, begin:end]


class CompiledText:
    """The language model of a checkpoint with its head, compiled for this processor.

    With integer matrices, the largest 16 logits of each row are computed again from the head's own weights. An 8-bit
    logit is off by about a hundredth of the spread of all logits, so the true largest one is among those 16.
    """

    def __init__(self, text: TextWeights, matrix: Matrix, formats: NumberFormats) -> None:
        """`matrix` returns the matrices of `text`, in the number formats."""
        self.on_layer: Callable[[], None] = lambda: None  # called before each pass, which may take long
        self.dtype = "bfloat16" if formats.bfloat16 else "float32"
        self.head, self._table = text.weights[text.head], text.embedding
        self._rounded = formats.bits > 0
        self._matrix = matrix  # whose memory the graph reads
        best = min(_EXACT_LOGITS, self.head.shape[0]) if formats.bits else 1
        # A pair (a, b) of halves of a head turns into (a cos - b sin, b cos + a sin). Positions have three axes, which
        # are equal for text and audio.
        dim = text.dim
        self._frequencies = (text.theta ** -(np.arange(0, dim, 2, dtype=np.float32) / dim)).astype(np.float32)
        self._compiled = formats.compiled(text_graph.build(text, best, matrix))
        self.request = self._compiled.create_infer_request()
        self._inputs = {one.get_any_name(): one for one in self._compiled.inputs}

    @property
    def mapped(self) -> dict[int, int]:
        """Return the bytes of the weights that are read from their files at each pass, by their addresses."""
        return {one.numbers.ctypes.data: one.numbers.nbytes for one in (self._table, self.head)}

    @property
    def vocabulary(self) -> int:
        return self.head.shape[0]

    def page_shapes(self) -> dict[str, tuple[list[int], Any]]:
        """Return shape and number format of a page of each layer, as the compiler chose them."""
        return {
            name: ([size.get_length() for size in list(one.get_partial_shape())[1:]], one.get_element_type())
            for name, one in self._inputs.items()
            if "_cache." in name
        }

    @property
    def page_bytes(self) -> int:
        return sum(_bytes(*one) for one in self.page_shapes().values())

    def attach(self, pages: Pages) -> None:
        for name, tensor in pages.tensors().items():
            self.request.set_tensor(name, tensor)

    def embed(self, ids: Sequence[int]) -> Floats:
        """Token ids (n,) to embeddings (n, d)."""
        return self._table.rows(np.array(ids, np.int64))

    def _rotation(self, places: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return cosine and sine (n, 1, dim) of positions (n,); the first half of the sine is negative."""
        angles = places.astype(np.float32)[:, None] * self._frequencies
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([cos, cos], axis=1)[:, None], np.concatenate([-sin, sin], axis=1)[:, None]

    def __call__(self, embeds: Floats, spans: Sequence[PageSpan], places: Sequence[int]) -> NextLogits:
        """Run tokens, packed (n, d), and write their keys and values. Returns the logits after the ones at `places`."""
        counts = [span.count for span in spans]
        where = np.concatenate([np.arange(span.start, span.start + span.count) for span in spans])
        used = [span.pages[: page_count(span.start + span.count)] for span in spans]
        rows = (
            [span.start for span in spans],
            [0, *accumulate(counts)],
            [page for pages in used for page in pages],
            [0, *accumulate(map(len, used))],
        )
        cos, sin = self._rotation(where)
        given: dict[str, NDArray[Any]] = {
            "embeds": np.ascontiguousarray(embeds),
            "cos": cos,
            "sin": sin,
            "places": np.array(places, np.int64),
            "max_context_len": np.array(max(span.start + span.count for span in spans), np.int32),
            **{name: np.array(values, np.int32) for name, values in zip(ROWS, rows, strict=True)},
        }
        for name, array in given.items():
            self.request.set_tensor(name, ov.Tensor(array))
        self.on_layer()
        # Read the outputs in place: `infer` would copy all logits.
        self.request.start_async()
        self.request.wait()
        logits, best, lse, hidden = (self.request.get_output_tensor(number).data for number in range(4))
        if not self._rounded:
            return NextLogits(logits, best[:, 0].astype(np.int64), lse[:, 0])
        return self._exact(logits, best, lse, hidden)

    def _exact(self, logits: Floats, best: NDArray[np.int32], lse: Floats, hidden: Floats) -> NextLogits:
        """Compute the largest logits of each row again, in place."""
        weights = self.head.rows(best.astype(np.int64))
        exact = np.einsum("kbd,kd->kb", weights, hidden)
        rows = np.arange(len(best))[:, None]
        # In the sum of exponentials, replace the terms of the old logits by the new ones. The largest is among them.
        change = np.exp(exact - lse).sum(1) - np.exp(logits[rows, best] - lse).sum(1)
        logits[rows, best] = exact
        tokens = best[rows[:, 0], exact.argmax(1)].astype(np.int64)
        return NextLogits(logits, tokens, lse[:, 0] + np.log1p(change))


def _bytes(shape: Sequence[int], kind: Any) -> int:
    return int(np.prod(shape)) * int(kind.size)
