"""A compiled language model: passes of packed tokens over pages of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from openvino import opset13 as ops
from torch.nn import functional as F

from asr_server.engine.openvino import text_graph
from asr_server.engine.openvino.eight_bits import OUTPUTS, Integers, Made, integers
from asr_server.engine.openvino.text_graph import ROWS
from asr_server.engine.protocol import Option
from asr_server.engine.torch.language_model import rotary_table
from asr_server.engine.torch.slots import NoRoom

# Tokens of a page, as the kernels of CPUs have them.
PAGE = 32
# Logits of a row that are computed again from the head's own weights: see `CompiledText`.
_EXACT_LOGITS = 16

Floats = NDArray[np.float32]


def page_count(tokens: int) -> int:
    """Return how many pages so many tokens take."""
    return -(-tokens // PAGE)


@dataclass(frozen=True, slots=True)
class PageSpan:
    """Tokens of one row that are run in a pass."""

    pages: list[int]  # those of the row
    start: int  # position of the first token
    count: int  # tokens from there on


class NextLogits(NamedTuple):
    """The logits after some of the tokens of a pass; the next pass overwrites them."""

    logits: Floats  # (k, vocabulary)
    tokens: NDArray[np.int64]  # (k,) the likeliest ones
    lse: Floats  # (k,) the logarithm of the sum of all exponentials


# Returns the matrices in 8 bits that it is given a function for, or those that were kept.
Keep = Callable[[Callable[[], Made]], Made]
# Kernels that are kept for shapes that passes had, of all layers together: steps have some two hundred, and each length
# of a prompt brings a few. By default 5,000 are kept, which took 400 MB after 3,000 passes of random lengths, and grew.
_PRIMITIVES = 512
# Rows of the input on which a matrix is compared.
_ROWS = 16


@dataclass(frozen=True, slots=True)
class NumberFormats:
    """The number formats that a model computes in, and its threads."""

    eight_bits: bool  # of matrices, keys and values; products are in float32, or in integers where the processor can
    bfloat16: bool  # of activations, where the matrices are not in 8 bits
    threads: int  # 0 leaves the number to the library

    def compiled(self, graph: ov.Model) -> ov.CompiledModel:
        """Compile a graph for this processor."""
        kind = ov.Type.bf16 if self.bfloat16 and not self.eight_bits else ov.Type.f32
        chosen = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": kind,
            "KV_CACHE_PRECISION": ov.Type.u8 if self.eight_bits else kind,
            "CPU_RUNTIME_CACHE_CAPACITY": _PRIMITIVES,
            "ENABLE_CPU_PINNING": False,  # the system places the threads, or NUMA_NODE
            **({"INFERENCE_NUM_THREADS": self.threads} if self.threads else {}),
        }
        return ov.Core().compile_model(graph, "CPU", chosen)

    def difference(self, weight: torch.Tensor, integers: Integers) -> float:
        """Compare a product with a matrix in 8 bits with that of its own weights: the norm of the difference over that
        of the outputs, on random inputs."""
        noise = torch.randn(_ROWS, weight.shape[1], generator=torch.Generator().manual_seed(0))
        x = ops.parameter([-1, weight.shape[1]], ov.Type.f32)
        y = ops.matmul(x, text_graph.in_eight_bits(*integers), False, True)
        found = torch.from_numpy(self.compiled(ov.Model([y], [x], "product"))(noise.numpy())[0])
        exact = torch.cat([F.linear(noise, part.float()) for part in weight.split(OUTPUTS)], dim=1)
        return float((found - exact).norm() / exact.norm().clamp(min=torch.finfo(torch.float32).tiny))

    def options(self, facts: dict[str, Any]) -> tuple[Option, ...]:
        """Return how far matrices in 8 bits are from those that they replace, as an option of the plan."""
        if not self.eight_bits:
            return ()
        count, largest = facts["matrices"], facts["largest_difference"]
        reason = f"the outputs of {count} layers differ by at most {largest:.1%} from those of the layers they replace"
        return (Option("quantize", True, "int8", reason),)


class Pages:
    """Keys and values of `tokens` tokens in pages of 32, of all layers.

    The system provides a page's memory when it is first written.
    """

    def __init__(self, shapes: dict[str, tuple[list[int], Any]], tokens: int) -> None:
        """`shapes`: of a page of each input of the graph, with its number format."""
        count = page_count(tokens)
        self._arrays = {name: np.zeros((count, _bytes(*one)), np.uint8) for name, one in shapes.items()}
        self._shapes = shapes
        self.free = list(range(count))

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(array.nbytes for array in self._arrays.values())

    def tensors(self) -> dict[str, ov.Tensor]:
        """Return the pages as inputs of the graph, in the memory that is here."""
        return {
            name: ov.Tensor(array, [len(array), *shape], kind)
            for (name, (shape, kind)), array in zip(self._shapes.items(), self._arrays.values(), strict=True)
        }

    def take(self, count: int) -> list[int]:
        """Return so many free pages, which are the caller's until it gives them back. Raises `NoRoom`."""
        if count > len(self.free):
            raise NoRoom
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give(self, pages: Sequence[int]) -> None:
        """Take pages back."""
        self.free += pages

    def clear(self, pages: Sequence[int]) -> None:
        """Zero pages whose numbers may be none. The kernels for AVX2 do not look behind the end of a row; others may
        multiply what is there by zero, which hides any other number."""
        for array in self._arrays.values():
            array[pages] = 0

    def copy(self, pages: Sequence[int]) -> NDArray[np.uint8]:
        """Return the bytes of pages, one page behind the other."""
        return np.concatenate([array[pages] for array in self._arrays.values()], axis=1)

    def put(self, pages: Sequence[int], kept: NDArray[np.uint8]) -> None:
        """Write what `copy` returned."""
        begins = [0, *accumulate(array.shape[1] for array in self._arrays.values())]
        for array, begin, end in zip(self._arrays.values(), begins, begins[1:], strict=False):
            array[pages] = kept[:, begin:end]


class CompiledText:
    """The language model of a checkpoint with its head, compiled for this processor.

    In 8 bits the logits that matter, the largest of each row, are computed again from the head's own weights. An 8-bit
    logit is off by about a hundredth of the spread of all of them, and 16 lie above any that it could hide.
    """

    device = torch.device("cpu")

    def __init__(
        self, text: Any, head: torch.Tensor, formats: NumberFormats, keep: Keep, on_progress: Callable[[], None]
    ) -> None:
        """`on_progress` is called while matrices are converted and compiled."""
        config = text.config
        best = min(_EXACT_LOGITS, len(head)) if formats.eight_bits else 1
        self.on_layer: Callable[[], None] = lambda: None  # called before each pass, of which a CPU may make a long one
        self.config, self._head, self._eight_bits = config, head, formats.eight_bits
        self._table: torch.Tensor = text.embed_tokens.weight
        self.dtype = torch.bfloat16 if formats.bfloat16 else torch.float32
        self._cos, self._sin = (part.float().numpy() for part in rotary_table(text))

        def make() -> Made:
            converted, largest = dict[str, Integers](), 0.0
            for name, weights in text_graph.matrices(text, head).items():
                on_progress()
                converted[name] = integers(whole := text_graph.joined(weights))
                largest = max(largest, formats.difference(whole, converted[name]))
            return converted, {"matrices": len(converted), "largest_difference": largest}

        converted, facts = keep(make) if formats.eight_bits else ({}, {})
        self.options = formats.options(facts)

        def matrix(name: str, _: Sequence[torch.Tensor]) -> ov.Node:
            return text_graph.in_eight_bits(*converted[name])

        graph = text_graph.build(text, head, best, matrix if formats.eight_bits else text_graph.own_format)
        on_progress()
        self._compiled, self._converted = formats.compiled(graph), converted
        self._request = self._compiled.create_infer_request()
        self._inputs = {one.get_any_name(): one for one in self._compiled.inputs}

    def page_shapes(self) -> dict[str, tuple[list[int], Any]]:
        """Return shape and number format of a page of each layer, as the compiler chose them."""
        return {
            name: ([size.get_length() for size in list(one.get_partial_shape())[1:]], one.get_element_type())
            for name, one in self._inputs.items()
            if "_cache." in name
        }

    @property
    def page_bytes(self) -> int:
        """Bytes of keys and values of a page, of all layers."""
        return sum(_bytes(*one) for one in self.page_shapes().values())

    def attach(self, pages: Pages) -> None:
        """Use these pages from now on."""
        for name, tensor in pages.tensors().items():
            self._request.set_tensor(name, tensor)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (n,) to embeddings (n, d) in float32."""
        return F.embedding(ids, self._table).float()

    def __call__(self, embeds: torch.Tensor, spans: Sequence[PageSpan], places: Sequence[int]) -> NextLogits:
        """Run tokens, packed (n, d), and write their keys and values. Returns what follows those at `places`."""
        counts = [span.count for span in spans]
        where = np.concatenate([np.arange(span.start, span.start + span.count) for span in spans])
        used = [span.pages[: page_count(span.start + span.count)] for span in spans]
        rows = (
            [span.start for span in spans],
            [0, *accumulate(counts)],
            [page for pages in used for page in pages],
            [0, *accumulate(map(len, used))],
        )
        given: dict[str, NDArray[Any]] = {
            "embeds": np.ascontiguousarray(embeds.float().numpy()),
            "cos": self._cos[where][:, None],
            "sin": self._sin[where][:, None],
            "places": np.array(places, np.int64),
            "max_context_len": np.array(max(span.start + span.count for span in spans), np.int32),
            **{name: np.array(values, np.int32) for name, values in zip(ROWS, rows, strict=True)},
        }
        for name, array in given.items():
            self._request.set_tensor(name, ov.Tensor(array))
        self.on_layer()
        # The outputs are read where they lie: `infer` would copy all logits.
        self._request.start_async()
        self._request.wait()
        logits, best, lse, hidden = (self._request.get_output_tensor(number).data for number in range(4))
        if not self._eight_bits:
            return NextLogits(logits, best[:, 0].astype(np.int64), lse[:, 0])
        return self._exact(logits, best, lse, hidden)

    def _exact(self, logits: Floats, best: NDArray[np.int32], lse: Floats, hidden: Floats) -> NextLogits:
        """Compute the largest logits of each row again, in place."""
        weights = self._head[torch.from_numpy(best.astype(np.int64))].float().numpy()
        exact = np.einsum("kbd,kd->kb", weights, hidden)
        rows = np.arange(len(best))[:, None]
        # The largest of all is among them: the sum of exponentials relative to it loses theirs and gets the new ones.
        change = np.exp(exact - lse).sum(1) - np.exp(logits[rows, best] - lse).sum(1)
        logits[rows, best] = exact
        tokens = best[rows[:, 0], exact.argmax(1)].astype(np.int64)
        return NextLogits(logits, tokens, lse[:, 0] + np.log1p(change))


def _bytes(shape: Sequence[int], kind: Any) -> int:
    return int(np.prod(shape)) * int(kind.size)
