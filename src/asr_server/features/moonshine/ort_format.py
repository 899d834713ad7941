"""Reads models in ONNX Runtime's own format, a FlatBuffer.

The numbers are places of fields in the tables of `onnxruntime/core/flatbuffers/schema/ort.fbs`. The reader that
onnxruntime brings imports torch where it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def read(content: bytes) -> Graph:
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
