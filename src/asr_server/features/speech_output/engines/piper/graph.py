"""Divides the network of a Piper voice in two: from phonemes to frames of features, and from frames to samples.

The file is one graph that draws its own random numbers and returns all samples at the end. The divided graph takes the
random numbers as inputs, so that a seed repeats an answer. It makes the samples a window of frames at a time, so that
the first samples are ready soon. The graph is VITS (Kim, Kong and Son, 2021): the vocoder begins with the last
convolution before the first transposed convolution.

This module reads only the fields of ONNX's messages that it needs, as
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto numbers them. The library `onnx` does the same, but takes 30 MB
more memory in the server and adds protobuf to its packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap

# Field numbers of ModelProto, GraphProto, NodeProto, TensorProto and ValueInfoProto.
_GRAPH = 7
_NODE, _INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _OPERATION = 1, 2, 4
_TENSOR_NAME, _VALUE_NAME = 8, 1
_FLOAT = 1  # TensorProto.DataType

OUTPUT = "output"
FRAMES = "frames"
NOISES = ("duration_noise", "frame_noise")


class UnknownGraph(ValueError):
    """The file is no graph of the kind that this module divides."""


@dataclass(frozen=True, slots=True)
class DividedGraph:
    """The two parts of a model, as ONNX files."""

    # From the inputs of the voice and the random numbers `NOISES`, float32 (1, channels, at least as many as it needs),
    # to `FRAMES`, float32 (1, channels, frames).
    acoustic: bytes
    vocoder: bytes  # From `FRAMES`, and the speaker if the voice has several, to `OUTPUT`.


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    operation: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    message: bytes  # the node as it is in the file


def divide(model: bytes | mmap) -> DividedGraph:
    try:
        return _divide(memoryview(model))
    except (IndexError, UnicodeDecodeError) as error:
        raise UnknownGraph("the file is no ONNX model") from error


def _divide(model: memoryview) -> DividedGraph:
    head, graph = bytearray(), None
    for number, message, whole in _fields(model):
        if number == _GRAPH:
            graph = message
        else:
            head += whole
    if graph is None:
        raise UnknownGraph("the file is no ONNX model")
    nodes, weights, inputs = [], {}, {}
    for number, message, _ in _fields(graph):
        if number == _NODE:
            nodes.append(_node(message))
        elif number == _INITIALIZER:
            weights[_text(message, _TENSOR_NAME)] = message
        elif number == _GRAPH_INPUT:
            inputs[_text(message, _VALUE_NAME)] = message
    nodes = _with_noise_as_input(nodes)
    frames = _input_of_vocoder(nodes)
    declared = {**inputs, **{name: memoryview(_value(name)) for name in (*NOISES, FRAMES)}}
    vocoder = [_made("Identity", (FRAMES,), (frames,)), *_needed_for(OUTPUT, nodes, given={frames})]
    acoustic = [*_needed_for(frames, nodes, given=set()), _made("Identity", (frames,), (FRAMES,))]
    return DividedGraph(
        acoustic=_model(head, acoustic, weights, declared, FRAMES),
        vocoder=_model(head, vocoder, weights, declared, OUTPUT),
    )


def _with_noise_as_input(nodes: list[_Node]) -> list[_Node]:
    """Return the nodes with each source of random numbers replaced by the beginning of an input of the same shape."""
    if sum(node.operation == "RandomNormalLike" for node in nodes) != len(NOISES):
        raise UnknownGraph("it does not draw random numbers twice")
    found: list[_Node] = []
    noises = iter(NOISES)
    for node in nodes:
        if node.operation == "RandomNormalLike":
            shape, origin = f"{node.outputs[0]}/shape", f"{node.outputs[0]}/origin"
            found.append(_made("Shape", node.inputs, (shape,)))
            found.append(_made("Sub", (shape, shape), (origin,)))
            found.append(_made("Slice", (next(noises), origin, shape), node.outputs))
        else:
            found.append(node)
    return found


def _input_of_vocoder(nodes: list[_Node]) -> str:
    """Return the input of the last convolution before the first transposed convolution."""
    makers = {output: node for node in nodes for output in node.outputs}
    node = next((node for node in nodes if node.operation == "ConvTranspose"), None)
    for _ in range(4):  # in between: an activation, and with several speakers the addition of a speaker's features
        node = makers.get(node.inputs[0]) if node is not None else None
        if node is not None and node.operation == "Conv":
            return node.inputs[0]
    raise UnknownGraph("it has no vocoder of transposed convolutions")


def _needed_for(output: str, nodes: list[_Node], given: set[str]) -> list[_Node]:
    """Return the nodes that the output depends on, in order, without those that only `given` tensors depend on."""
    wanted, needed = {output}, []
    for node in reversed(nodes):  # they are sorted: each comes after the nodes that it needs
        if not wanted.isdisjoint(node.outputs):
            needed.append(node)
            wanted |= set(node.inputs) - given
    return needed[::-1]


def _made(operation: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> _Node:
    written = [_field(_NODE_INPUT, name.encode()) for name in inputs]
    written += [_field(_NODE_OUTPUT, name.encode()) for name in outputs]
    return _Node(operation, inputs, outputs, b"".join([*written, _field(_OPERATION, operation.encode())]))


def _node(message: memoryview) -> _Node:
    texts: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_OUTPUT: [], _OPERATION: []}
    for number, value, _ in _fields(message):
        if number in texts:
            texts[number].append(str(value, "utf-8"))
    return _Node("".join(texts[_OPERATION]), tuple(texts[_NODE_INPUT]), tuple(texts[_NODE_OUTPUT]), bytes(message))


def _model(
    head: bytearray, nodes: list[_Node], weights: dict[str, memoryview], inputs: dict[str, memoryview], output: str
) -> bytes:
    """Return a model of these nodes with the weights and the inputs that they use."""
    used = {name for node in nodes for name in node.inputs}
    parts = [_field(_NODE, node.message) for node in nodes]
    parts.append(_field(2, b"part"))  # the name of a graph is required
    parts += [_field(_INITIALIZER, weights[name]) for name in weights if name in used]
    parts += [_field(_GRAPH_INPUT, inputs[name]) for name in inputs if name in used and name != output]
    parts.append(_field(_GRAPH_OUTPUT, _value(output)))
    return bytes(head) + _field(_GRAPH, b"".join(parts))


def _value(name: str) -> bytes:
    """Return a ValueInfoProto: a float32 tensor of three dimensions of any size."""
    shape = b"".join(_field(1, _field(2, f"{name}_{axis}".encode())) for axis in range(3))
    tensor = _written(1 << 3 | _VARINT) + _written(_FLOAT) + _field(2, shape)
    return _field(_VALUE_NAME, name.encode()) + _field(2, _field(1, tensor))


def _text(message: memoryview, wanted: int) -> str:
    return next((str(value, "utf-8") for number, value, _ in _fields(message) if number == wanted), "")


# The wire format: https://protobuf.dev/programming-guides/encoding/
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield for each field its number, its value (empty if that is a number), and the whole field."""
    at = 0
    while at < len(message):
        begin = at
        key, at = _varint(message, at)
        size, kind = 0, key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise UnknownGraph("the file is no ONNX model")
        value, at = message[at : at + size], at + size
        if at > len(message):
            raise UnknownGraph("the file is cut off")
        yield key >> 3, value, message[begin:at]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends."""
    number = shift = 0
    while True:
        byte = message[at]
        number, at, shift = number | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return number, at


def _written(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def _field(field: int, value: bytes | memoryview) -> bytes:
    return b"".join((_written(field << 3 | _BYTES), _written(len(value)), value))
