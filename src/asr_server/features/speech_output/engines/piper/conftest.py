"""Fixtures for tests of the voices."""

import json

import numpy as np
import onnx
import pytest

from asr_server.features.speech_output.engines.piper import voice


@pytest.fixture
def voice_file(tmp_path):
    """A function that writes a voice whose configuration differs from the packaged one, and returns its file."""

    def write(name="de_DE-karl-low", network=b"", card="", **changes):
        directory = tmp_path / name
        directory.mkdir()
        config = json.loads(voice.packaged().with_name(voice.packaged().name + ".json").read_text())
        (directory / f"{name}.onnx.json").write_text(json.dumps(config | changes))
        if card:
            (directory / "MODEL_CARD").write_text(card)
        file = directory / f"{name}.onnx"
        file.write_bytes(network)
        return file

    return write


def small_graph(*, with_speaker=False):
    """A network of the form of a voice: two sources of random numbers with their scales, a convolution, a transposed
    one, and where it has three speakers the features of one. A sign has a frame, and a frame four samples."""
    node, kinds = onnx.helper.make_node, onnx.TensorProto
    weights = {
        "table": np.arange(512, dtype=np.float32).reshape(256, 2) / 1024,
        "kernel": np.ones((2, 2, 1), np.float32),
        "voices": np.arange(6, dtype=np.float32).reshape(3, 2, 1),
        "up": np.full((2, 1, 4), 0.25, np.float32),
        "0": np.array(0),
        "2": np.array(2),
    }
    last = "with_speaker" if with_speaker else "before"
    of_speaker = [node("Gather", ["voices", "sid"], ["speaker"]), node("Add", ["before", "speaker"], [last])]
    nodes = [
        node("Gather", ["table", "input"], ["embedded"]),
        node("Transpose", ["embedded"], ["features"], perm=[0, 2, 1]),
        node("Cast", ["input_lengths"], ["length"], to=kinds.FLOAT),
        node("RandomNormalLike", ["features"], ["first_noise"]),
        node("Gather", ["scales", "2"], ["first_scale"]),
        node("Mul", ["first_noise", "first_scale"], ["first"]),
        node("RandomNormalLike", ["features"], ["second_noise"]),
        node("Gather", ["scales", "0"], ["second_scale"]),
        node("Mul", ["second_noise", "second_scale"], ["second"]),
        node("Sum", ["features", "first", "second"], ["sum"]),
        node("Min", ["sum", "length"], ["latent"]),
        node("Conv", ["latent", "kernel"], ["before"]),
        *(of_speaker if with_speaker else []),
        node("LeakyRelu", [last], ["active"]),
        node("ConvTranspose", ["active", "up"], ["output"], strides=[4]),
    ]
    shapes = {"input": [1, "length"], "input_lengths": [1], **({"sid": [1]} if with_speaker else {})}
    inputs = [onnx.helper.make_tensor_value_info(name, kinds.INT64, shape) for name, shape in shapes.items()]
    inputs.append(onnx.helper.make_tensor_value_info("scales", kinds.FLOAT, [3]))
    outputs = [onnx.helper.make_tensor_value_info("output", kinds.FLOAT, None)]
    initial = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = onnx.helper.make_graph(nodes, "small", inputs, outputs, initial)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)])
    model.ir_version = 8
    return model.SerializeToString()
