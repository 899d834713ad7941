"""The TensorRT encoder with a stand-in for the library, which runs the ONNX file in ONNX Runtime."""

import ctypes
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest
import torch
from torch.testing import assert_close

from asr_server.cli.main import main
from asr_server.core.errors import ModelUnavailable
from asr_server.features.encoders import exported_encoder, trt_encoder
from asr_server.features.encoders.conftest import parts
from asr_server.features.encoders.exported_encoder import Target
from asr_server.features.encoders.trt_encoder import TrtEncoder, unpack

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(600)]

TYPES = {"pieces": np.float32, "widths": np.int64, "tokens": np.int64}


class _Context:
    def __init__(self, content):
        self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        self._shapes, self._addresses = {}, {}

    def set_input_shape(self, name, shape):
        self._shapes[name] = shape
        return shape[0] <= 4

    def get_tensor_shape(self, name):
        assert name == "embeddings"
        windows, pieces = self._shapes["pieces"][:2]
        return (windows, pieces * 13, 192)

    def set_tensor_address(self, name, address):
        self._addresses[name] = address

    def execute_async_v3(self, stream):
        inputs = {name: self._at(name, self._shapes[name], kind) for name, kind in TYPES.items()}
        self._at("embeddings", self.get_tensor_shape("embeddings"), np.float32)[:] = self._session.run(None, inputs)[0]
        return True

    def _at(self, name, shape, kind):
        kind = np.ctypeslib.as_ctypes_type(kind)
        return np.ctypeslib.as_array(ctypes.cast(self._addresses[name], ctypes.POINTER(kind)), shape)


@pytest.fixture
def library(monkeypatch):
    """The part of `tensorrt` that is used. `problem`: why it does not read a file."""
    made = Mock(cleared=[], shapes={}, problem="")
    made.__version__, made.BuilderFlag.TF32 = "10.0", "tf32"
    builder, parser = made.Builder.return_value, made.OnnxParser.return_value

    def parse(content):
        builder.build_serialized_network.return_value = content
        return not made.problem

    builder.create_builder_config.return_value.clear_flag = made.cleared.append
    builder.create_optimization_profile.return_value.set_shape = lambda name, *own: made.shapes.update({name: own})
    parser.parse, parser.num_errors = parse, 1
    parser.get_error.return_value.desc = lambda: made.problem
    made.Runtime.return_value.deserialize_cuda_engine = lambda content: Mock(
        create_execution_context=lambda: _Context(content)
    )
    monkeypatch.setitem(sys.modules, "tensorrt", made)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return made


@torch.inference_mode()
def test_what_is_built_is_run_in_calls_of_at_most_so_many_windows(library, onnx_file, tmp_path):
    """The engine is built without TF32, with the profiles in TensorRT's order. Another version cannot read it."""
    output = tmp_path / "encoder.engine"
    trt_encoder.export(onnx_file, output, max_windows=3)
    assert library.cleared == ["tf32"]
    assert library.shapes.keys() == TYPES.keys()
    for least, usual, largest in library.shapes.values():
        assert all(a <= b <= c for a, b, c in zip(least, usual, largest, strict=True))
        assert largest[0] == 3
    encoder = TrtEncoder(output, parts().tower, Target(torch.device("cpu"), torch.float32, 1))
    assert exported_encoder.compared(encoder, parts()).startswith("float32; its numbers")
    windows = encoder.windows(torch.rand(128, 3700))
    exact = exported_encoder.exact_encoder(parts())
    assert_close(torch.cat(encoder(windows)), torch.cat(exact(windows)), atol=1e-3, rtol=0)
    library.__version__ = "11.4"
    with pytest.raises(ModelUnavailable, match=r"was built by TensorRT 10.0, and 11.4 is installed"):
        TrtEncoder(output, parts().tower, Target(torch.device("cpu"), torch.float32, 1))


def test_what_tensorrt_cannot_read_is_said(library, onnx_file, tmp_path):
    library.problem = "no such operator"
    with pytest.raises(ModelUnavailable, match="no such operator"):
        trt_encoder.export(onnx_file, tmp_path / "x", max_windows=3)
    assert not list(tmp_path.iterdir())


def test_without_the_library_the_command_says_so(onnx_file, tmp_path, capsys):
    assert main(["export", "tensorrt", "--onnx", str(onnx_file), "--output", str(tmp_path / "x")]) == 1
    assert "the package tensorrt is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"{}", b"asr-server encoder {}\n", b"asr-server encoder x\nengine"])
def test_what_is_no_engine_of_ours_is_refused(content):
    with pytest.raises(ModelUnavailable, match="no encoder that `asr-server export tensorrt` made"):
        unpack(content, "file")
