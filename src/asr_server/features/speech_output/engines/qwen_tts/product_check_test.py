"""Every product of the models on this machine, and that the comparison finds a wrong one."""

import pytest
import torch
from torch.nn import functional as F

from asr_server import demo
from asr_server.engine import cpu
from asr_server.engine.cpu import BFLOAT16_FLAGS
from asr_server.features.speech_output.engines.qwen_tts import product_check
from asr_server.features.speech_output.engines.qwen_tts.product_check import Sizes

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def sizes():
    """The demonstration model's products, for some numbers of rows."""
    return Sizes.of(demo.checkpoint_path())


def test_the_products_of_the_demonstration_model_are_right(sizes):
    """Products are right in bfloat16 and 8 bits, to what the formats round, with memory full of NaN."""
    assert product_check.faults(sizes) == []


@pytest.mark.nightly
def test_they_are_right_for_every_number_of_rows(sizes):
    """The numbers of rows are 1 to 600."""
    assert product_check.faults(sizes, product_check.ALL_ROWS) == []


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_products_of_the_released_model_are_right():
    """The products of the 0.6B, for every number of rows; for some on a processor that has no bfloat16, where all take
    an hour and the engine runs in float32."""
    rows = product_check.ALL_ROWS if cpu.flags().intersection(BFLOAT16_FLAGS) else (1, 2, 8, 16, 17, 64, 410)
    assert product_check.faults(product_check.RELEASED, rows) == []


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 0.0])
def test_a_wrong_number_is_found(monkeypatch, sizes, wrong):
    """Among all numbers of a product, and the number of rows at which it is wrong is named."""

    def linear(x, weight, bias=None):
        y = torch.addmm(bias, x, weight.T) if bias is not None else x @ weight.T
        if x.dtype == torch.bfloat16 and len(x) == 3:
            y[2, 5] = wrong
        return y

    monkeypatch.setattr(F, "linear", linear)
    found = product_check.faults(sizes, (1, 3, 4))
    assert len(found) == 9
    assert {(fault.rows, fault.wrong) for fault in found} == {(3, 1)}
    assert str(found[-1]).startswith("down in bfloat16, 3 rows: 1 numbers wrong")
