"""Writes the graph of the voice detector, `src/asr_server/audio/silero_batch.onnx`: `python -m tools.voice_detector`.

Silero's own ONNX files take one stream a call. This graph has the same layers for the frames of many streams at once:
all but the LSTM are products of matrices over all frames, and the LSTM has a row for each stream. It holds no weights:
it says where they are in `silero_vad_16k_sequence.onnx`, a copy of a file of the package silero-vad. (The package's
safetensors file has other weights.) After copying that file from another version, run this and update NOTICE.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from asr_server.audio import segmentation

FRAME, CONTEXT, HOP, WINDOW, BINS, UNITS = 512, 64, 128, 256, 129, 128
_FLOAT, _INT64, _INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32

INPUTS = {
    "frames": (_FLOAT, ["frames", FRAME]),  # of one stream after the other, each in order
    "gains": (_FLOAT, ["frames", 1]),
    # the row of each frame's predecessor, where the states of the streams have the first rows, and then come the frames
    "before": (_INT64, ["frames"]),
    "last": (_INT64, ["streams"]),  # the row of each stream's last frame, counted so too
    # each stream's first frame, second frame and so on; any number where it has no more
    "table": (_INT64, ["steps", "streams"]),
    "counts": (_INT32, ["streams"]),  # frames of each stream
    "states": (_FLOAT, ["streams", 2 * UNITS + CONTEXT]),  # hidden, cell, and the end of the frame before
}
OUTPUTS = {
    "probabilities": (_FLOAT, ["steps", 1, "streams", 1]),  # of the frames in `table`
    "next_states": (_FLOAT, ["streams", 2 * UNITS + CONTEXT]),
}


class _Graph:
    """The nodes so far, in order."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.integers: dict[str, TensorProto] = {}

    def add(self, operation: str, *inputs: str, to: str = "", **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        output = to or f"{operation}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, inputs, [output], **attributes))
        return output

    def constant(self, *numbers: int) -> str:
        name = "_".join(map(str, ("integers", *numbers)))
        self.integers[name] = helper.make_tensor(name, _INT64, [len(numbers)], numbers)
        return name

    def part(self, tensor: str, first: int, end: int, axis: int = 1, step: int = 1) -> str:
        """Return the part in [first, end) of an axis."""
        return self.add("Slice", tensor, *map(self.constant, (first, end, axis, step)))

    def shaped(self, tensor: str, *shape: int) -> str:
        return self.add("Reshape", tensor, self.constant(*shape))

    def convolution(self, tensor: str, layer: int, channels: int, columns: int, stride: int) -> str:
        """Return a convolution over three columns, padded by one on both sides, and its activation.

        A frame is a row with one column after the other. Each column of the result is one product of those columns
        that it covers; the padding, all zeros, is left out.
        """
        weight, bias = f"encoder.{layer}.weight", f"encoder.{layer}.bias"
        weights = self.add("Flatten", self.add("Transpose", weight, perm=[0, 2, 1]))
        products = []
        for centre in range(0, columns, stride):
            first, end = max(0, centre - 1), min(columns, centre + 2)
            covered = self.part(tensor, first * channels, end * channels)
            used = self.part(weights, (first - centre + 1) * channels, (end - centre + 1) * channels)
            products.append(self.add("Gemm", covered, used, bias, transB=1))
        return self.add("Relu", self.add("Concat", *products, axis=1) if len(products) > 1 else products[0])


def model(weights: Path) -> ModelProto:
    """Return the graph. `weights`: the file of the package."""
    graph = _Graph()
    loud = graph.add("Mul", "frames", "gains")
    ends = graph.part(loud, FRAME - CONTEXT, FRAME)
    ends = graph.add("Concat", graph.part("states", 2 * UNITS, 2 * UNITS + CONTEXT), ends, axis=0)
    mirrored = graph.part(loud, FRAME - 2, FRAME - 2 - CONTEXT, step=-1)
    features = _features(graph, graph.add("Concat", graph.add("Gather", ends, "before"), loud, mirrored, axis=1))
    steps = graph.add("Gather", features, "table")
    states = [graph.add("Unsqueeze", graph.part("states", at, at + UNITS), graph.constant(0)) for at in (0, UNITS)]
    inputs, outputs = [steps, *_LSTM, "counts", *states], ["outputs", "hidden", "cell"]
    graph.nodes.append(helper.make_node("LSTM", inputs, outputs, hidden_size=UNITS))
    score = graph.add("MatMul", graph.add("Relu", "outputs"), graph.shaped("output.weight", UNITS, 1))
    graph.add("Sigmoid", graph.add("Add", score, "output.bias"), to="probabilities")
    state = [graph.add("Squeeze", each, graph.constant(0)) for each in ("hidden", "cell")]
    graph.add("Concat", *state, graph.add("Gather", ends, "last"), axis=1, to="next_states")
    made = helper.make_graph(
        graph.nodes,
        "silero_batch",
        _values(INPUTS),
        _values(OUTPUTS),
        [*_references(weights, graph.nodes), *graph.integers.values()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


_STFT, _LSTM = "stft.forward_basis_buffer", ("onnx::LSTM_209", "onnx::LSTM_210", "onnx::LSTM_211")


def _features(graph: _Graph, samples: str) -> str:
    """Return the features of each frame, from its samples between the end of the one before and their mirror image."""
    columns = (CONTEXT + FRAME + CONTEXT) // HOP - 1
    hops = graph.shaped(samples, -1, columns + 1, HOP)
    windows = graph.add("Concat", graph.part(hops, 0, columns), graph.part(hops, 1, columns + 1), axis=2)
    basis = graph.add("Transpose", graph.shaped(_STFT, 2 * BINS, WINDOW))
    spectrum = graph.add("MatMul", graph.shaped(windows, -1, WINDOW), basis)
    power = graph.add("Mul", spectrum, spectrum)
    power = graph.add("Add", graph.part(power, 0, BINS), graph.part(power, BINS, 2 * BINS))
    features = graph.shaped(graph.add("Sqrt", power), -1, columns * BINS)
    features = graph.convolution(features, 0, BINS, columns, stride=1)
    features = graph.convolution(features, 1, 128, columns, stride=2)
    features = graph.convolution(features, 2, 64, columns // 2, stride=2)
    return graph.convolution(features, 3, 64, columns // 4, stride=1)


def _references(weights: Path, nodes: list[NodeProto]) -> list[TensorProto]:
    """Return where the file has the weights that the nodes name."""
    content, named = weights.read_bytes(), {name for node in nodes for name in node.input}
    found = []
    for kept in onnx.load_from_string(content).graph.initializer:
        if kept.name in named:
            assert content.count(kept.raw_data) == 1, f"{kept.name} is not found, or twice"
            tensor = TensorProto(name=kept.name, data_type=_FLOAT, dims=kept.dims, data_location=TensorProto.EXTERNAL)
            place = {"location": weights.name, "offset": content.index(kept.raw_data), "length": len(kept.raw_data)}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            found.append(tensor)
    return found


def _values(of: dict[str, tuple[int, list[str | int]]]) -> list[ValueInfoProto]:
    return [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in of.items()]


if __name__ == "__main__":
    segmentation.GRAPH.write_bytes(model(segmentation.WEIGHTS).SerializeToString(deterministic=True))
