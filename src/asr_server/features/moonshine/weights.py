"""The decoder's weights, read from its graph in ONNX Runtime's format and turned from 8-bit numbers into float32.

The graph of the package quantizes the activations of a whole pass together, so what it computes for one row depends on
the others in its batch, and a draft can change an answer. Run in float32 it does neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flatbuffers import number_types
from flatbuffers.encode import Get
from flatbuffers.packer import uoffset
from flatbuffers.table import Table
from numpy.typing import NDArray

# TensorProto.DataType of the ONNX format.
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.float32), 2: np.dtype(np.uint8), 3: np.dtype(np.int8)}


class Tensor:
    """A constant of a graph."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def name(self) -> str:
        """Return the tensor's name in the graph."""
        return _text(self._table, 4)

    @property
    def value(self) -> NDArray[Any] | None:
        """Return a copy of its numbers; None if they are of another type than float32, uint8 and int8."""
        dtype = _DTYPES.get(self._table.GetSlot(10, 0, number_types.Int32Flags))
        if dtype is None:
            return None
        shape = self._table.GetVectorAsNumpy(number_types.Int64Flags, self._table.Offset(8))
        values = self._table.GetVectorAsNumpy(number_types.Uint8Flags, self._table.Offset(12))
        return np.array(values).view(dtype).reshape(shape)


class GraphNode:
    """An operator of a graph."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def operator(self) -> str:
        """Return the operator's name without the domain."""
        return _text(self._table, 14)

    @property
    def inputs(self) -> list[str]:
        """Return the names of what it reads."""
        return _texts(self._table, 20)

    @property
    def outputs(self) -> list[str]:
        """Return the names of what it computes."""
        return _texts(self._table, 22)

    @property
    def branches(self) -> dict[str, Graph]:
        """The graphs among its attributes, by name."""
        return {
            _text(attribute, 4): Graph(_table(attribute, 18))
            for attribute in _tables(self._table, 24)
            if attribute.Offset(18)
        }


class Graph:
    """Operators and constants."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def tensors(self) -> Iterator[Tensor]:
        """Return the graph's constants."""
        return map(Tensor, _tables(self._table, 4))

    @property
    def nodes(self) -> Iterator[GraphNode]:
        """Return the graph's operators in the order of execution."""
        return map(GraphNode, _tables(self._table, 8))


def graph_of(content: bytes) -> Graph:
    """Return the graph of a model."""
    session = Table(content, Get(uoffset, content, 0))
    return Graph(_table(_table(session, 6), 18))


def _text(table: Table, place: int) -> str:
    offset = table.Offset(place)
    return str(table.String(offset + table.Pos).decode()) if offset else ""


def _texts(table: Table, place: int) -> list[str]:
    return [str(table.String(at).decode()) for at in _elements(table, place)]


def _table(table: Table, place: int) -> Table:
    return Table(table.Bytes, table.Indirect(table.Offset(place) + table.Pos))


def _tables(table: Table, place: int) -> Iterator[Table]:
    return (Table(table.Bytes, table.Indirect(at)) for at in _elements(table, place))


def _elements(table: Table, place: int) -> range:
    """Return the places where the offsets of a vector's elements are."""
    offset = table.Offset(place)
    if not offset:
        return range(0)
    start = table.Vector(offset)
    return range(start, start + 4 * table.VectorLen(offset), 4)


Array = NDArray[np.float32]

# Operators that multiply with a matrix of weights, their second input.
_MATRIX_PRODUCTS = {"MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
# The branch for the first call: the other one lacks the keys and values of the encoder's states.
_BRANCH = "else_branch"


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The weights of one decoder layer, with d for its width and f for that of the layers between; norms and biases are
    vectors."""

    self_norm: Array
    qkv: Array  # (d, 3 d)
    out: Array  # (d, d)
    cross_norm: Array
    cross_q: Array  # of the attention to the encoder's states, (d, d)
    cross_kv: Array  # (d, 2 d)
    cross_out: Array  # (d, d)
    mlp_norm: Array
    up: Array  # (d, 2 f)
    up_bias: Array
    down: Array  # (f, d)
    down_bias: Array


@dataclass(frozen=True, slots=True, eq=False)
class DecoderWeights:
    """The weights of the whole decoder."""

    embedding: Array  # (vocabulary, d); the output's matrix too
    layers: tuple[LayerWeights, ...]
    norm: Array  # (d,)


def read(path: Path) -> DecoderWeights:
    """Return the weights in a `decoder_model_merged.ort`. Raises `KeyError` if the file is of another model."""
    graph = graph_of(path.read_bytes())
    branch = next(node.branches[_BRANCH] for node in graph.nodes if node.branches)
    tensors = {
        tensor.name: value for part in (graph, branch) for tensor in part.tensors if (value := tensor.value) is not None
    }
    products = dict(_products(branch, tensors))
    count = sum(name.endswith("mlp/fc2") for name in products)
    return DecoderWeights(
        embedding=_dequantized(tensors, "model.decoder.embed_tokens.weight_merged_0"),
        layers=tuple(_layer(n, products, tensors) for n in range(count)),
        norm=tensors["model.decoder.norm.weight_merged_0"],
    )


def _layer(number: int, products: dict[str, Array], tensors: dict[str, NDArray[Any]]) -> LayerWeights:
    def matrix(name: str) -> Array:
        return products[f"/model/decoder/layers.{number}/{name}"]

    def vector(name: str) -> Array:
        return tensors[f"model.decoder.layers.{number}.{name}_merged_0"]

    def side_by_side(attention: str, names: str) -> Array:
        return np.concatenate([matrix(f"{attention}/{name}_proj") for name in names], axis=1)

    return LayerWeights(
        self_norm=vector("input_layernorm.weight"),
        qkv=side_by_side("self_attn", "qkv"),
        out=matrix("self_attn/o_proj"),
        cross_norm=vector("post_attention_layernorm.weight"),
        cross_q=matrix("encoder_attn/q_proj"),
        cross_kv=side_by_side("encoder_attn", "kv"),
        cross_out=matrix("encoder_attn/o_proj"),
        mlp_norm=vector("final_layernorm.weight"),
        up=matrix("mlp/fc1"),
        up_bias=vector("mlp.fc1.bias"),
        down=matrix("mlp/fc2"),
        down_bias=vector("mlp.fc2.bias"),
    )


def _products(branch: Graph, tensors: dict[str, NDArray[Any]]) -> Iterator[tuple[str, Array]]:
    """Yield the matrix of each product of activations with weights in the layers, by the name of the product's
    output."""
    for node in branch.nodes:
        # The one that gives the logits is the embedding again.
        if node.operator in _MATRIX_PRODUCTS and node.outputs != ["logits"]:
            weight = node.inputs[1].removesuffix("_quantized")
            output = node.outputs[0].removesuffix("/MatMul_output_0").removesuffix("/Add_output_0")
            yield output, _dequantized(tensors, weight)


def _dequantized(tensors: dict[str, NDArray[Any]], name: str) -> Array:
    scale, zero = tensors[f"{name}_scale"], tensors[f"{name}_zero_point"]
    matrix: Array = (tensors[f"{name}_quantized"].astype(np.float32) - np.float32(zero)) * scale
    return matrix
