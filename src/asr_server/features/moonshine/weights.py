"""The decoder's weights, read from its graph in ONNX Runtime's format and turned from 8-bit numbers into float32.

The package's graph quantizes the activations of a whole pass together, so a row's results depend on the other rows in
its batch, and a draft can change an answer. In float32, neither happens.
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

# Places of fields in the tables of ONNX Runtime's schema (ort.fbs).
_SESSION_MODEL, _MODEL_GRAPH = 6, 18
_GRAPH_TENSORS, _GRAPH_NODES = 4, 8
_TENSOR_NAME, _TENSOR_SHAPE, _TENSOR_TYPE, _TENSOR_BYTES = 4, 8, 10, 12
_NODE_OPERATOR, _NODE_INPUTS, _NODE_OUTPUTS, _NODE_ATTRIBUTES = 14, 20, 22, 24
_ATTRIBUTE_NAME, _ATTRIBUTE_GRAPH = 4, 18
# TensorProto.DataType of the ONNX format.
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.float32), 2: np.dtype(np.uint8), 3: np.dtype(np.int8)}


Array = NDArray[np.float32]

# Operators that multiply with a matrix of weights, their second input.
_MATRIX_PRODUCTS = {"MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
# The branch for the first call: the other one lacks the keys and values of the encoder's states.
_BRANCH = "else_branch"


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The weights of one decoder layer. d is its width, f the width of its feed-forward layer; norms and biases are
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
    """Return the weights in a `decoder_model_merged.ort`. Raises `KeyError` for the file of another model."""
    content = path.read_bytes()
    graph = _table(_table(Table(content, Get(uoffset, content, 0)), _SESSION_MODEL), _MODEL_GRAPH)
    attributes = [part for node in _tables(graph, _GRAPH_NODES) for part in _tables(node, _NODE_ATTRIBUTES)]
    branch = {_text(part, _ATTRIBUTE_NAME): part for part in attributes}[_BRANCH]
    branch = _table(branch, _ATTRIBUTE_GRAPH)
    tensors = {
        _text(tensor, _TENSOR_NAME): value
        for part in (graph, branch)
        for tensor in _tables(part, _GRAPH_TENSORS)
        if (value := _value(tensor)) is not None
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


def _products(branch: Table, tensors: dict[str, NDArray[Any]]) -> Iterator[tuple[str, Array]]:
    """Yield the matrix of each product of activations with weights in the layers, by the name of the product's
    output."""
    for node in _tables(branch, _GRAPH_NODES):
        output = _texts(node, _NODE_OUTPUTS)[0]
        # The product that gives the logits uses the embedding again.
        if _text(node, _NODE_OPERATOR) in _MATRIX_PRODUCTS and output != "logits":
            weight = _texts(node, _NODE_INPUTS)[1].removesuffix("_quantized")
            name = output.removesuffix("/MatMul_output_0").removesuffix("/Add_output_0")
            yield name, _dequantized(tensors, weight)


def _dequantized(tensors: dict[str, NDArray[Any]], name: str) -> Array:
    scale, zero = tensors[f"{name}_scale"], tensors[f"{name}_zero_point"]
    matrix: Array = (tensors[f"{name}_quantized"].astype(np.float32) - np.float32(zero)) * scale
    return matrix


def _value(tensor: Table) -> NDArray[Any] | None:
    """Return a copy of the numbers of a tensor; None if they are of another type than float32, uint8 and int8."""
    dtype = _DTYPES.get(tensor.GetSlot(_TENSOR_TYPE, 0, number_types.Int32Flags))
    if dtype is None:
        return None
    shape = tensor.GetVectorAsNumpy(number_types.Int64Flags, tensor.Offset(_TENSOR_SHAPE))
    values = tensor.GetVectorAsNumpy(number_types.Uint8Flags, tensor.Offset(_TENSOR_BYTES))
    return np.array(values).view(dtype).reshape(shape)


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
