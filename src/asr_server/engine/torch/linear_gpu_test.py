"""Layers in 8 bits by a library for GPUs, on a CPU: bitsandbytes has slow kernels for it, torchao none."""

import subprocess
import sys

import pytest
import torch

from asr_server.engine.torch.linear import Layers, gpu_int8

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def int8(tmp_path_factory):
    """The library is for GPUs, and large: it is installed apart."""
    folder = tmp_path_factory.mktemp("bitsandbytes")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder)
    subprocess.run([*pip, "bitsandbytes==0.50.2"], check=True)
    sys.path.insert(0, str(folder))
    try:
        yield gpu_int8
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize("biased", [False, True])
def test_integers_are_near_the_layer_that_they_replace(int8, biased, caplog):
    """Within 8 bits of precision for each row, with its bias, and a row has its own scale."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(96, 64, generator=generator).bfloat16()
    bias = torch.randn(96, generator=generator).bfloat16() if biased else None
    rows = torch.randn(5, 64, generator=generator).bfloat16()
    layers = Layers("int8")
    layer = layers(weight, bias)
    assert (layers.count, 0.001 < layers.largest < 0.03) == (1, True)
    exact = torch.nn.functional.linear(rows, weight, bias)
    assert (layer(rows) - exact).norm() / exact.norm() < 0.03
    beside = torch.cat([rows[:1], 1000 * rows[1:2]])
    assert torch.equal(layer(beside)[0], layer(rows[:1])[0])
    assert layer.weight.dtype is torch.int8
    assert not [record for record in caplog.records if "cast" in record.message], "a line for each pass"
