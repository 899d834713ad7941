"""The encoder of the bundled checkpoint, in torch and exported; and the fixtures of the engines."""

import pytest

from asr_server import demo
from asr_server.engine import core
from asr_server.engine.capabilities import probe
from asr_server.engine.conftest import alone, clips, make_engine, planned, run, speech

__all__ = ["alone", "clips", "loaded", "make_engine", "onnx_file", "parts", "run", "speech"]


def parts(directory=None):
    import torch

    from asr_server.engine.qwen_asr import loading

    return loading.load(directory or demo.checkpoint_path(), device="cpu", dtype=torch.float32)


def loaded(**values):
    engine = core.build_engine(planned(probe(), **values))
    engine.load()
    return engine


@pytest.fixture(scope="package")
def onnx_file(tmp_path_factory):
    from asr_server.features.encoders import onnx_export

    output = tmp_path_factory.mktemp("onnx") / "encoder.onnx"
    onnx_export.export(demo.checkpoint_path(), output, int8=False)
    assert list(output.parent.iterdir()) == [output]
    return output
