"""`asr-server doctor`: what it says of a processor whose kernels are wrong."""

import os

import pytest

from asr_server.cli import doctor
from asr_server.cli.doctor import Mark
from asr_server.features.speech_output.engines.qwen_tts import product_check

pytestmark = pytest.mark.torch


def test_a_wrong_product_fails_with_what_to_set(monkeypatch):
    """The line names the product, the number of rows and the instructions."""
    fault = product_check.ProductFault("down in bfloat16", 3, 2, 1)
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


def test_the_figures_are_those_of_this_machine():
    """Cores of this process, memory that is there, the installed libraries."""
    here = doctor._look()
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.memory_free_gib > 0
    assert 0 < here.memory_gib <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3
    assert all(here.libraries.values())


def test_a_missing_package_is_an_empty_version():
    """A version that is missing is not an error: it is what the caller looks for."""
    assert doctor._version("no-such-package-here") == ""
