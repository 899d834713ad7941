"""Layers in 8 bits on CPUs against the same layers in float32, on random numbers."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from asr_server.engine import cpu
from asr_server.engine.cpu import INT8_FLAGS
from asr_server.features.speech_output.engines.qwen_tts import eight_bits

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(cpu.flags().isdisjoint(INT8_FLAGS), reason="sums of 8-bit products overflow on this processor"),
]

LARGE = [(1024, 4096), (3072, 1024), (7680, 896)]
SHAPES = [*LARGE, (896, 2688), (96, 33)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _relative_error(found, expected):
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_eight_bits_are_off_by_about_a_hundredth(shape, biased, dtype):
    """The numbers are normally distributed, in any leading shape; the result has the dtype of the input."""
    weight, bias = torch.randn(shape[1], shape[0]) * 0.02, torch.randn(shape[1]) if biased else None
    x = (torch.randn(3, 5, shape[0]) * torch.rand(3, 5, 1) * 10).to(dtype)
    made = eight_bits.Int8Linear(weight.to(dtype), bias if bias is None else bias.to(dtype))
    found, expected = made(x), F.linear(x.float(), weight.to(dtype).float(), bias)
    assert found.dtype == dtype
    assert found.shape == expected.shape
    assert 0.001 < _relative_error(found, expected) < 0.02


@pytest.mark.parametrize("rows", [2, 3, 8, 13, 16, 32, 104, 410])
@pytest.mark.parametrize("shape", [(896, 2688), (96, 33), *(pytest.param(s, marks=pytest.mark.nightly) for s in LARGE)])
def test_a_row_yields_the_same_bits_in_any_batch(shape, rows):
    """The row is alone and among others, one of them a million times as large; both kernels yield nearly the same."""
    weight, bias = torch.randn(shape[1], shape[0]), torch.randn(shape[1])
    x = torch.randn(rows, shape[0])
    x[-1] *= 1e6
    found = [eight_bits.Int8Linear(weight, bias, **{other: False}) for other in ("few", "many")]
    for made in found:
        together = made(x)
        assert all(torch.equal(together[n], made(x[n : n + 1])[0]) for n in {0, 1, rows // 2, rows - 1})
    assert all(_relative_error(few, many) < 1e-6 for few, many in zip(found[0](x), found[1](x), strict=True))
    assert torch.equal(eight_bits.Int8Linear(weight, bias)(x), found[rows <= 16](x))


def test_without_the_kernel_for_few_rows_the_other_serves_all(monkeypatch):
    """Builds of torch for other processors lack that kernel."""
    monkeypatch.setattr(torch.backends, "quantized", SimpleNamespace(supported_engines=["onednn"]))
    weight, x = torch.randn(64, 128), torch.randn(2, 128)
    for many in (True, False):
        assert _relative_error(eight_bits.Int8Linear(weight, many=many)(x), F.linear(x, weight)) < 0.02


def test_one_large_value_costs_other_rows_nothing():
    """The first row would be rounded to nothing with one scale for a whole pass."""
    weight = torch.randn(64, 128)
    x = torch.randn(2, 128)
    x[1, 0] = 1e5
    assert _relative_error(eight_bits.Int8Linear(weight)(x)[0], F.linear(x[0], weight)) < 0.02


def test_zeros_stay_zeros_and_what_is_no_number_stays_in_its_row():
    """A row without a value has no scale; an output without weights has none either."""
    weight = torch.randn(64, 128)
    weight[3] = 0
    x = torch.randn(3, 128)
    x[0], x[1, 5] = 0, torch.nan
    found = eight_bits.Int8Linear(weight)(x)
    assert not found[0].any()
    assert found[1].isnan().all()
    assert found[2].isfinite().all()
    assert found[2, 3] == 0
