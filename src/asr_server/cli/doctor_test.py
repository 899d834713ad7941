"""`asr-server doctor`: what it says of a processor whose kernels are wrong."""

import pytest

from asr_server.cli import doctor
from asr_server.cli.doctor import Mark
from asr_server.engine.qwen import product_check

pytestmark = pytest.mark.torch


def test_a_wrong_product_fails_with_what_to_set(monkeypatch):
    """The line names the product, the number of rows and the instructions."""
    fault = product_check.Fault("down in bfloat16", 3, 2, 1)
    monkeypatch.setattr(product_check, "faults", lambda _: [fault])
    (finding,) = doctor._products()
    assert (finding.mark, finding.subject) == (Mark.FAIL, "products")
    assert finding.text.startswith(product_check.instruction_set())
    assert "down in bfloat16, 3 rows: 2 numbers wrong, 1 of them not finite" in finding.text
    assert "ONEDNN_MAX_CPU_ISA" in finding.text


def test_products_that_are_right_are_said_with_what_was_compared(monkeypatch):
    """The report says the bundled model's sizes and some numbers of rows, and not more than that."""
    monkeypatch.setattr(product_check, "faults", lambda _: [])
    (finding,) = doctor._products()
    assert finding.mark is Mark.OK
    assert f"those of the bundled model's sizes, for {len(product_check.FEW_ROWS)} numbers of rows" in finding.text
